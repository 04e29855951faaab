"""A small engine, connector and site for planner tests: plain classes that are registered with a host."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from disagg_run import (
    Command,
    Engine,
    EnvSetting,
    Extension,
    Flag,
    Host,
    LaunchPlan,
    LaunchSpec,
    Listener,
    ModelRow,
    Preflight,
    Probe,
    ProcessContext,
    RankContext,
    ServiceProcess,
    Setting,
    SharedValue,
    build_host,
    flag,
    hookimpl,
)


class ToyEngine:
    """Serves HTTP, opens a block of derived ports, spans nodes."""

    name = "toy-disagg"

    @hookimpl
    def disagg_plugin(self) -> Engine:
        return Engine(
            name="toy-disagg",
            summary="a toy",
            models=(ModelRow(name="toy-model"), ModelRow(name="toy-small", tp={"prefill": 2, "decode": 2})),
            versions=">=1",
            default_version="1.2.0",
            default_connector="toy-link",
            multi_node_workers=True,
            settings=(Setting(name="block_size", type="int", summary="tokens of a KV block"),),
            parity=(SharedValue(name="block-size", flag="--block-size", why="KV blocks must fit"),),
        )

    @hookimpl
    def disagg_readiness(self, ctx: ProcessContext) -> Iterable[Listener]:
        if ctx.process.kind == "router":
            return [Listener(name="http", default_port=30000, probe=Probe(kind="http", path="/ready", timeout_s=60))]
        listeners = [
            Listener(
                name="http",
                default_port=8000,
                worker_wide=True,
                probe=Probe(kind="http", timeout_s=600),
                flag="--port",
            ),
            Listener(name="internal", relative_to="http", offset=233, count=5),
        ]
        if ctx.process.head and ctx.process.role == "prefill":
            listeners.append(Listener(name="bootstrap", default_port=8998))
        return listeners

    @hookimpl
    def disagg_server_command(self, ctx: ProcessContext) -> Iterable[Command]:
        flags = [
            flag("--role", ctx.process.role),
            flag("--port", ctx.ports["http"]),
            flag("--tp", ctx.role_spec.tp, source=ctx.spec.source(f"{ctx.process.role}.tp")),
        ]
        if ctx.setting("block_size") is not None:
            flags.append(flag("--block-size", ctx.setting("block_size"), source=ctx.source("block_size")))
        if ctx.process.node_count > 1 and ctx.head is not None:
            flags += [flag("--join", ctx.head.address), flag("--node-rank", ctx.process.node_rank)]
        return [Command(program=("toy-server",), flags=flags)]

    @hookimpl
    def disagg_router_command(self, ctx: ProcessContext) -> Iterable[Command]:
        workers = [flag(f"--{head.role}-{head.worker}", f"{head.address}:{head.ports['http']}") for head in ctx.heads]
        return [Command(program=("toy-router",), flags=[flag("--port", ctx.ports["http"]), *workers])]

    @hookimpl
    def disagg_env(self, ctx: ProcessContext) -> Iterable[EnvSetting]:
        return [EnvSetting("TOY_HOST", ctx.node.address), EnvSetting("TOY_LEVEL", "1")]


class ToyLink:
    """The toy's connector."""

    name = "toy-link"

    @hookimpl
    def disagg_plugin(self) -> Extension:
        return Extension(name="toy-link", summary="a toy connector", kind="connector", engines=("toy-disagg",))

    @hookimpl
    def disagg_args(self, ctx: ProcessContext) -> Iterable[Flag]:
        if ctx.process.role is None:
            return ()
        kind = "producer" if ctx.process.role == "prefill" else "consumer"
        return [flag("--link", {"role": kind, "extra": {"host": ctx.node.address}})]


class ToyStore:
    """A site plugin with a service on rank 0 and a setup on every rank."""

    name = "toy-store"

    @hookimpl
    def disagg_plugin(self) -> Extension:
        return Extension(name="toy-store", summary="a store", kind="site")

    @hookimpl
    def disagg_services(self, ctx: RankContext) -> Iterable[ServiceProcess]:
        setup = ServiceProcess(name="route", kind="setup", command=Command(program=("true",)), scope="rank")
        if ctx.rank:
            return [setup]
        store = ServiceProcess(
            name="store",
            kind="service",
            command=Command(program=("toy-store",), flags=[flag("--rpc-port", "{port:rpc}")]),
            listeners=(Listener(name="rpc", default_port=8000, probe=Probe(kind="tcp", timeout_s=30)),),
        )
        return [setup, store]


class Site:
    """A site plugin that sets what it is told to."""

    def __init__(
        self,
        name: str,
        *,
        env: dict[str, str] | None = None,
        flags: Iterable[Flag] = (),
        checks: Iterable[Preflight] = (),
    ) -> None:
        self.name = name
        self.env = env or {}
        self.flags = tuple(flags)
        self.checks = tuple(checks)

    @hookimpl
    def disagg_plugin(self) -> Extension:
        return Extension(name=self.name, summary="a site", kind="site")

    @hookimpl
    def disagg_env(self, ctx: ProcessContext) -> Iterable[EnvSetting]:
        return [EnvSetting(name, value) for name, value in self.env.items()]

    @hookimpl
    def disagg_args(self, ctx: ProcessContext) -> Iterable[Flag]:
        return self.flags if ctx.process.role else ()

    @hookimpl
    def disagg_preflight(self, ctx: RankContext) -> Iterable[Preflight]:
        return self.checks


def toy_host(*more: object) -> Host:
    """A host with the toy engine and its connector, and ``more`` plugins; no installed ones."""
    return build_host(plugins=[ToyEngine(), ToyLink(), *more], disabled=(), entry_points=False)


HOST = toy_host()


def spec(**changes: Any) -> LaunchSpec:
    """What is asked of the toy engine."""
    return LaunchSpec(engine="toy-disagg", model="toy-model", **changes)


def values(made: LaunchPlan, process: str, name: str) -> list[str]:
    """The words behind each occurrence of a flag."""
    argv = made.process(process).argv
    return [argv[index + 1] for index, word in enumerate(argv) if word == name]
