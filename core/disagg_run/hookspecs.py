"""The hook contract: what a plugin may implement, and what the core does with each answer.

Every hook gets frozen inputs and returns frozen records; it starts nothing, prints nothing, reads no clock and changes
nothing. ``()`` means nothing to add; an iterator or generator is fine. The host calls the implementations of one hook
one by one in the order of plugin names, checks each record's type, and pairs it with its plugin.

The hooks stand in the order of a launch: what a rank has, what each process runs, what a node needs for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    from disagg_run.context import ProcessContext, RankContext
    from disagg_run.declarations import Engine, Extension
    from disagg_run.records import (
        Command,
        ContainerNeeds,
        EnvSetting,
        Flag,
        Listener,
        Patch,
        Preflight,
        ServiceProcess,
        Simulation,
        Workload,
    )

PROJECT = "disagg_run"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)

# --- discovery ---------------------------------------------------------------------------------------------------


@hookspec
def disagg_plugin() -> Engine | Extension:
    """Say what the plugin is. Called once, when the plugin is loaded.

    Returns: an ``Engine`` or an ``Extension`` whose name is the entry point's name. The core decides by it which
    plugins a plan calls: its engine, one connector, the site plugins that fit, and the patch sets that were asked for.

        @hookimpl
        def disagg_plugin():
            return Extension(name="my-site", summary="our cluster", kind="site")
    """
    raise AssertionError("a specification is not called")


# --- processes and ports -----------------------------------------------------------------------------------------


@hookspec
def disagg_services(ctx: RankContext) -> Iterable[ServiceProcess]:
    """Add service and setup processes to a rank. Called once a rank, before ports are known.

    ``ctx``: the rank, its node and facts, the heads of all workers (without ports yet).
    Returns: services, which must be ready, and setup commands, which must have ended with 0, before servers start.

        @hookimpl
        def disagg_services(ctx):
            return [ServiceProcess(name="store", kind="service", command=STORE)] if ctx.rank == 0 else ()
    """
    raise AssertionError("a specification is not called")


@hookspec
def disagg_readiness(ctx: ProcessContext) -> Iterable[Listener]:
    """Name every port that a server or router opens, per role, and what proves it ready. Called once a process.

    ``ctx``: the process; its ports and the heads' ports are not known yet.
    Returns: listeners; the core allocates their ports, refuses overlaps, and builds the gates from their probes. A head
    must have a listener called ``http``; listener names of several plugins must differ.

        @hookimpl
        def disagg_readiness(ctx):
            return [Listener(name="http", default_port=8000, probe=Probe(kind="http", timeout_s=1800))]
    """
    raise AssertionError("a specification is not called")


# --- commands ----------------------------------------------------------------------------------------------------


@hookspec
def disagg_server_command(ctx: ProcessContext) -> Iterable[Command]:
    """Give the command of one worker's process, followers included. Called once a server process.

    ``ctx``: the process with its ports, and the heads of all workers with theirs.
    Returns: one command; exactly one plugin of the plan must answer, the others return ``()``.

        @hookimpl
        def disagg_server_command(ctx):
            return [Command(program=("toy-server",), flags=[flag("--port", ctx.ports["http"])])]
    """
    raise AssertionError("a specification is not called")


@hookspec
def disagg_router_command(ctx: ProcessContext) -> Iterable[Command]:
    """Give the router's command. Called once, for rank 0, unless the router is external.

    ``ctx``: the router's process with its ports, and the heads of all workers with theirs.
    Returns: one command; exactly one plugin of the plan must answer.

        @hookimpl
        def disagg_router_command(ctx):
            return [Command(program=("toy-router",), flags=[flag("--worker", head.url) for head in ctx.heads])]
    """
    raise AssertionError("a specification is not called")


@hookspec
def disagg_args(ctx: ProcessContext) -> Iterable[Flag]:
    """Add flags to a server's or the router's command. Called once a process, after its command.

    ``ctx``: as for the command; ``ctx.process.kind`` tells server from router.
    Returns: flags, merged by name with the command's: a later layer replaces, two plugins of one layer that differ are
    an error naming both, JSON objects merge by key.

        @hookimpl
        def disagg_args(ctx):
            return [flag("--kv-transfer-config", {"kv_connector": "toy"})] if ctx.process.role else ()
    """
    raise AssertionError("a specification is not called")


@hookspec
def disagg_env(ctx: ProcessContext) -> Iterable[EnvSetting]:
    """Set, unset or extend variables of a server or the router. Called once a process.

    ``ctx``: as for the command.
    Returns: settings, merged by name like flags; prepends and appends accumulate and are resolved on the node.

        @hookimpl
        def disagg_env(ctx):
            return [EnvSetting("TOY_HOST", ctx.node.address)]
    """
    raise AssertionError("a specification is not called")


# --- nodes -------------------------------------------------------------------------------------------------------


@hookspec
def disagg_patches(ctx: RankContext) -> Iterable[Patch]:
    """Offer source patches. Called once a rank, for plugins whose patches were asked for.

    ``ctx``: the rank; ``ctx.engine_version`` is the version planned for.
    Returns: patches; the core takes those that were asked for by id or set, with what they require, in that order.

        @hookimpl
        def disagg_patches(ctx):
            return [Patch(id="toy-fix", why="…", package=["toy"], file="toy/a.py", edits=[EDIT])]
    """
    raise AssertionError("a specification is not called")


@hookspec
def disagg_container(ctx: RankContext) -> Iterable[ContainerNeeds]:
    """Say what the engine's container on this rank needs. Called once a rank where an image is used.

    ``ctx``: the rank with its node's facts (NIC and GPU types), or None for them.
    Returns: needs; the core unites those of all plugins and renders them for the container tool.

        @hookimpl
        def disagg_container(ctx):
            return [ContainerNeeds(devices=["/dev/kfd", "/dev/dri"], groups=["video"])]
    """
    raise AssertionError("a specification is not called")


@hookspec
def disagg_preflight(ctx: RankContext) -> Iterable[Preflight]:
    """Ask for checks on the node before anything starts. Called once a rank.

    ``ctx``: the rank.
    Returns: checks of the kinds that the core knows; the agent makes them and stops the run where a required one fails.

        @hookimpl
        def disagg_preflight(ctx):
            return [Preflight(name="model", kind="path_exists", target=ctx.model_path)]
    """
    raise AssertionError("a specification is not called")


@hookspec
def disagg_simulation(ctx: ProcessContext) -> Iterable[Simulation]:
    """Name the stand-in of a process. Called once a process under ``--simulate``.

    ``ctx``: as for the command.
    Returns: one stand-in, started with the plan's flags and environment in place of the real program; a process for
    which nobody answers is started for real.

        @hookimpl
        def disagg_simulation(ctx):
            return [Simulation(program=["@python", "-m", "toy_plugin.stand_in"])]
    """
    raise AssertionError("a specification is not called")


@hookspec
def disagg_workload(ctx: RankContext) -> Iterable[Workload]:
    """Give the benchmark to run against the router. Called once, for rank 0, where a benchmark was asked for.

    No option of this release asks for one, so it is specified and not called yet.

    ``ctx``: rank 0; ``ctx.spec.bench`` says the load.
    Returns: workloads, run one after the other once the run is serving.

        @hookimpl
        def disagg_workload(ctx):
            return [Workload(command=Command(program=("toy-bench",)))]
    """
    raise AssertionError("a specification is not called")
