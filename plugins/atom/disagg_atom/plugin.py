"""The engine plugin ``atom-disagg``: ATOM's OpenAI server behind atomesh."""

from __future__ import annotations

from collections.abc import Iterable

from disagg_atom import environment, listeners, models, parity, preflight, router, server, settings, versions
from disagg_run.context import ProcessContext, RankContext
from disagg_run.declarations import Engine
from disagg_run.hookspecs import hookimpl
from disagg_run.model_files import model_to_mount
from disagg_run.node_needs import container_needs
from disagg_run.records import Command, ContainerNeeds, EnvSetting, Listener, Preflight, Simulation


@hookimpl
def disagg_plugin() -> Engine:
    return Engine(
        name="atom-disagg",
        summary="ATOM's OpenAI server behind atomesh, on AMD GPUs",
        models=models.read_models,
        versions=versions.RANGE,
        default_version=versions.NEWEST,
        default_connector="atom-mooncake",
        # The server has no flags for nodes and ranks.
        multi_node_workers=False,
        settings=settings.ENGINE,
        contract_unset=settings.CONTRACT_UNSET,
        contract_unread=settings.CONTRACT_UNREAD,
        kv_transfers={"mooncake": "atom-mooncake"},
        parity=parity.ENGINE,
        context_flag="--max-model-len",
        catalogues=versions.CATALOGUES,
        tested=versions.TESTED,
        parsers={"server": ("@python", "-m", "atom.entrypoints.openai_server")},
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
    return [container_needs(ctx.facts, vendor="amd", model=model_to_mount(ctx))]


@hookimpl
def disagg_preflight(ctx: RankContext) -> Iterable[Preflight]:
    return preflight.checks(ctx)


@hookimpl
def disagg_simulation(ctx: ProcessContext) -> Iterable[Simulation]:
    module = "disagg_atom.atomesh_simulation" if ctx.process.kind == "router" else "disagg_atom.simulation"
    return [Simulation(program=("@python", "-m", module))]
