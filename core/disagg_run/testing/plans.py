"""A plan for the plugins under test, with stand-ins for whatever plugins they need beside them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from disagg_run.context import ProcessContext
from disagg_run.declarations import Engine, Extension, ModelRow
from disagg_run.errors import PluginError, SpecError
from disagg_run.hookspecs import hookimpl
from disagg_run.host import Host, build_host
from disagg_run.planning.document import LaunchPlan
from disagg_run.planning.planner import plan
from disagg_run.records import Command, Listener, Probe, flag
from disagg_run.spec.model import LaunchSpec, RoleSpec

#: Name of the engine that stands in where no engine is under test.
BARE_ENGINE = "bare-disagg"
#: The only model of that engine.
BARE_MODEL = "bare-model"


def host_for(*plugins: object) -> Host:
    """A host with ``plugins`` and nothing that is installed, completed so that a plan can be made.

    Where no engine is among them a bare one stands in, by the name of the engine that they are for; where the engine's
    default connector is not among them, one that adds nothing stands in. Raises PluginError where a plugin is broken.
    """
    host = _healthy(plugins)
    extensions = host.extensions().values()
    completed = list(plugins)
    engines = list(host.engines().values())
    if not engines:
        name = next((each.engines[0] for each in extensions if each.engines != "all"), BARE_ENGINE)
        connectors = [each.name for each in extensions if each.kind == "connector"]
        bare = _BareEngine(name, connectors[0] if connectors else "bare")
        completed.append(bare)
        engines = [bare.record]
    missing = sorted({engine.default_connector for engine in engines} - set(host.extensions()))
    return _healthy([*completed, *(_SilentConnector(name) for name in missing)])


def plan_for(
    *plugins: object,
    engine: str | None = None,
    model: str | None = None,
    prefill: int | RoleSpec = 1,
    decode: int | RoleSpec = 1,
    **spec: Any,
) -> LaunchPlan:
    """A plan with ``plugins`` and nothing that is installed; see ``host_for`` for what stands in beside them.

    ``engine``: None = the only one. ``model``: None = the first of its table. ``prefill`` and ``decode``: workers, or a
    whole RoleSpec. ``spec``: further fields of LaunchSpec.
    """
    host = host_for(*plugins)
    names = list(host.engines())
    if engine is None and len(names) > 1:
        raise SpecError(f"{len(names)} engines are under test", remedy=f"name one of {', '.join(names)} by engine=")
    chosen = engine or names[0]
    asked = LaunchSpec(
        engine=chosen,
        model=model or first_model(host, chosen),
        prefill=_role(prefill),
        decode=_role(decode),
        **spec,
    )
    return plan(asked, host=host)


def first_model(host: Host, engine: str) -> str:
    """The first model of an engine's table; a made-up name for an engine that takes any model and has no table."""
    rows = host.models(engine)
    if not rows and not host.engine(engine).any_model:
        raise PluginError(f"plugin {engine!r} has no model", remedy="give it a model table, or any_model=True")
    return rows[0].name if rows else BARE_MODEL


def _role(asked: int | RoleSpec) -> RoleSpec:
    return RoleSpec(workers=asked) if isinstance(asked, int) else asked


def _healthy(plugins: Iterable[object]) -> Host:
    host = build_host(plugins=plugins, disabled=(), entry_points=False)
    for problem in host.problems():
        raise PluginError(str(problem)) from problem.cause
    return host


class _SilentConnector:
    """A connector that adds nothing."""

    def __init__(self, name: str) -> None:
        self.record = Extension(name=name, summary="adds nothing", kind="connector")

    @hookimpl
    def disagg_plugin(self) -> Extension:
        return self.record


class _BareEngine:
    """An engine with the least that a plan needs."""

    def __init__(self, name: str, connector: str) -> None:
        self.record = Engine(
            name=name,
            summary="the least that a plan needs",
            models=[ModelRow(name=BARE_MODEL)],
            versions="",
            default_version="1.0",
            default_connector=connector,
            multi_node_workers=True,
        )

    @hookimpl
    def disagg_plugin(self) -> Engine:
        return self.record

    @hookimpl
    def disagg_readiness(self, ctx: ProcessContext) -> Iterable[Listener]:
        default = 30000 if ctx.process.kind == "router" else 8000
        return [Listener(name="http", default_port=default, probe=Probe(kind="http"))]

    @hookimpl
    def disagg_server_command(self, ctx: ProcessContext) -> Iterable[Command]:
        return [Command(program=("bare-server", ctx.model_path), flags=[flag("--port", ctx.ports["http"])])]

    @hookimpl
    def disagg_router_command(self, ctx: ProcessContext) -> Iterable[Command]:
        return [Command(program=("bare-router",), flags=[flag("--port", ctx.ports["http"])])]
