"""The engine plugin ``sglang-disagg``: SGLang's server behind sglang-router."""

from __future__ import annotations

from collections.abc import Iterable

from disagg_run.context import ProcessContext, RankContext
from disagg_run.declarations import Engine
from disagg_run.hookspecs import hookimpl
from disagg_run.model_files import model_to_mount
from disagg_run.node_needs import container_needs
from disagg_run.records import Command, ContainerNeeds, EnvSetting, Listener, Preflight, ServiceProcess, Simulation
from disagg_run.simulation.offline import OFFLINE
from disagg_sglang import (
    environment,
    hicache,
    listeners,
    models,
    parity,
    preflight,
    router,
    server,
    settings,
    versions,
)
from disagg_sglang.devices import device


@hookimpl
def disagg_plugin() -> Engine:
    return Engine(
        name="sglang-disagg",
        summary="SGLang's server behind sglang-router",
        models=models.read_models,
        versions=versions.RANGE,
        default_version=versions.NEWEST,
        default_connector="sglang-mori",
        kv_transfers={"mori": "sglang-mori", "mooncake": "sglang-mooncake"},
        multi_node_workers=True,
        settings=settings.ENGINE,
        contract_unset=settings.CONTRACT_UNSET,
        parity=parity.ENGINE,
        waivable={preflight.MEMORY_CHECK: "a node with less free memory than HiCache was given"},
        context_flag="--context-length",
        catalogues=versions.CATALOGUES,
        tested=versions.TESTED,
        parsers={
            "server": ("@python", "-m", "sglang.launch_server"),
            "router": ("@python", "-m", "sglang_router.launch_router"),
        },
        gone_flags=versions.GONE_FLAGS,
        distributions=("sglang",),
    )


@hookimpl
def disagg_services(ctx: RankContext) -> Iterable[ServiceProcess]:
    return hicache.services(ctx)


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
        return [Simulation(program=(*OFFLINE, "sglang_router.launch_router"), stand_in=False)]
    if ctx.process.name == hicache.MASTER:
        return [Simulation(program=("@python", "-m", "disagg_sglang.simulation_store"))]
    if ctx.process.kind != "server":
        return ()
    words = ("-m", "disagg_sglang.simulation", "--catalogue-version", versions.catalogue_version(ctx.engine_version))
    return [Simulation(program=("@python", *words))]
