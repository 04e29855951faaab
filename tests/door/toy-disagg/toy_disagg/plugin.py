"""The engine plugin ``toy-disagg``: toy servers behind the toy router."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from disagg_run import (
    CatalogueRef,
    Command,
    Engine,
    Flag,
    Listener,
    ModelRow,
    Probe,
    ProcessContext,
    Setting,
    SharedValue,
    Simulation,
    flag,
    hookimpl,
)

CATALOGUES = Path(__file__).parent / "catalogues"


@hookimpl
def disagg_plugin() -> Engine:
    return Engine(
        name="toy-disagg",
        summary="toy servers behind the toy router",
        models=[ModelRow(name="toy-model", tp={"prefill": 4, "decode": 8}), ModelRow(name="toy-small")],
        versions=">=1.2",
        default_version="1.2.0",
        default_connector="toy-link",
        multi_node_workers=True,
        settings=[Setting(name="block_size", type="int", summary="tokens of a KV block")],
        parity=[SharedValue(name="block-size", flag="--block-size", why="KV moves block by block")],
        catalogues=[
            CatalogueRef(program="server", version="1.2.0", file=CATALOGUES / "toy-server.json"),
            CatalogueRef(program="router", version="1.2.0", file=CATALOGUES / "toy-router.json"),
        ],
    )


@hookimpl
def disagg_readiness(ctx: ProcessContext) -> Iterator[Listener]:
    served = ctx.spec.served_model_name or ctx.spec.model
    if ctx.process.kind == "router":
        port = ctx.spec.router.port
        ready = Probe(kind="generation", path="/v1/completions", timeout_s=120, served_model=served)
        yield Listener(name="http", default_port=port or 30000, pinned=port is not None, probe=ready)
    elif ctx.process.head:
        # A follower serves nothing: it joins its head's group.
        yield Listener(name="http", default_port=8000, probe=Probe(kind="http", timeout_s=600, served_model=served))
        if ctx.process.node_count > 1:
            yield Listener(name="group", default_port=20000)


@hookimpl
def disagg_server_command(ctx: ProcessContext) -> Iterable[Command]:
    return [Command(program=("toy-server", ctx.model_path), flags=tuple(server_flags(ctx)))]


def server_flags(ctx: ProcessContext) -> Iterator[Flag]:
    """Flags of one server process, each with who set it where that is not this plugin."""
    process, spec = ctx.process, ctx.spec
    yield flag("--served-model-name", spec.served_model_name or spec.model, source=spec.source("served_model_name"))
    yield flag("--tp-size", ctx.role_spec.tp, source=spec.source(f"{process.role}.tp"))
    if process.head:
        yield flag("--host", "0.0.0.0")
        yield flag("--port", ctx.ports["http"])
    if process.node_count > 1 and ctx.head is not None:
        yield flag("--nodes", process.node_count)
        yield flag("--node-rank", process.node_rank)
        yield flag("--group", f"{ctx.head.address}:{ctx.head.ports['group']}")
    if ctx.setting("block_size") is not None:
        yield flag("--block-size", ctx.setting("block_size"), source=ctx.source("block_size"))


@hookimpl
def disagg_router_command(ctx: ProcessContext) -> Iterable[Command]:
    workers = [flag(f"--{head.role}", head.url) for head in ctx.heads]
    return [Command(program=("toy-router",), flags=[flag("--port", ctx.ports["http"]), *workers])]


@hookimpl
def disagg_simulation(ctx: ProcessContext) -> Iterable[Simulation]:
    return [Simulation(program=("@python", "-m", f"toy_disagg.{ctx.process.kind}_stand_in"))]
