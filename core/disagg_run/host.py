"""The plugin host: finds the plugins, says what is wrong with which, and picks those that one plan calls.

``build_host()`` returns a fresh host; nothing is kept between hosts. First-party engines are entry points of the group
``disagg_run`` like anyone's.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence

import pluggy

from disagg_run import hookspecs
from disagg_run.context import RankContext
from disagg_run.declarations import Engine, Extension, ModelRow
from disagg_run.errors import DisaggError, PluginError, SpecError
from disagg_run.host_loading import LoadedPlugin, PluginProblem, load_plugins, name_plugin, one_line
from disagg_run.host_selection import Contribution, Selection, offered_patches
from disagg_run.host_stamping import describe
from disagg_run.near_miss import nearest
from disagg_run.planning.document import PluginUsed
from disagg_run.records import Patch
from disagg_run.spec.model import frozen_map

__all__ = ["DISABLE", "Contribution", "Host", "PluginProblem", "Selection", "build_host"]

#: Variable with the names of plugins to go on without, comma separated.
DISABLE = "DISAGG_RUN_DISABLE"


def build_host(
    *, plugins: Iterable[object] = (), disabled: Iterable[str] | None = None, entry_points: bool = True
) -> Host:
    """A host with the installed plugins, and with those that a program gives.

    ``plugins``: modules, instances or classes with hook implementations; each takes the place of an installed plugin of
    its name. ``disabled``: names of installed plugins to leave out; None = those of ``DISAGG_RUN_DISABLE``.
    ``entry_points``: whether to look for installed plugins at all.
    A broken plugin raises nothing here: it is one of ``host.problems()``, and an error once a plan might need it.
    """
    if disabled is None:
        disabled = os.environ.get(DISABLE, "").replace(",", " ").split()
    left_out = frozenset(disabled)
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    loaded, problems = load_plugins(manager, given=plugins, disabled=left_out, entry_points=entry_points)
    return Host(loaded, problems, left_out)


class Host:
    """The plugins of this installation, by name; make one with ``build_host()``."""

    def __init__(
        self,
        loaded: Sequence[LoadedPlugin],
        problems: Sequence[PluginProblem],
        disabled: frozenset[str] = frozenset(),
    ) -> None:
        self._loaded = {plugin.name: plugin for plugin in loaded}
        self._problems = tuple(problems)
        self._disabled = disabled
        self._models: dict[str, tuple[ModelRow, ...]] = {}

    def engines(self) -> Mapping[str, Engine]:
        """The healthy engines by name, sorted."""
        return frozen_map({name: record for name, record in self._records() if isinstance(record, Engine)})

    def extensions(self) -> Mapping[str, Extension]:
        """The healthy connectors, site plugins and patch sets by name, sorted."""
        return frozen_map({name: record for name, record in self._records() if isinstance(record, Extension)})

    def problems(self) -> tuple[PluginProblem, ...]:
        """The broken plugins, by name."""
        return self._problems

    def plugins(self) -> tuple[PluginUsed, ...]:
        """All healthy plugins with the distributions that brought them, by name."""
        return tuple(
            PluginUsed(name=plugin.name, distribution=plugin.distribution, version=plugin.version)
            for plugin in self._loaded.values()
        )

    def engine(self, name: str) -> Engine:
        """The engine of that name.

        Raises SpecError where there is none, naming the nearest, and PluginError where its plugin is broken.
        """
        record = self._plugin(name, "engine", list(self.engines())).record
        assert isinstance(record, Engine)
        return record

    def implementer(self, name: str) -> object:
        """The module or object that implements a healthy plugin; PluginError where there is none of that name."""
        if name not in self._loaded:
            raise PluginError(f"no healthy plugin is called {name!r}", remedy=f"there are {', '.join(self._loaded)}")
        return self._loaded[name].hooks["disagg_plugin"].plugin

    def models(self, engine_name: str) -> tuple[ModelRow, ...]:
        """The model table of an engine, read once; PluginError where its plugin cannot give it."""
        known = self._models.get(engine_name)
        if known is None:
            known = self._models[engine_name] = _read_models(self.engine(engine_name))
        return known

    def select(self, engine: str, connector: str | None, patches: Sequence[str] = ()) -> Selection:
        """The plugins of one plan: the engine, one connector, the site plugins that fit, and the patch sets asked for.

        ``connector``: None = the engine's default. ``patches``: names of patch plugins, of their sets, or of single
        patches; only its plugin knows a single patch's name, so for such a name all patch plugins that fit are called.
        Raises SpecError for names that are not there or do not fit, PluginError for a broken plugin that the plan needs
        or might need (one that could not say what it is may be a site plugin, and a plan without it would be wrong).
        """
        record = self.engine(engine)
        fitting = {name: plugin for name, plugin in self._loaded.items() if _fits(plugin.record, engine)}
        names = [name for name, plugin in fitting.items() if _kind(plugin.record) == "connector"]
        chosen = self._plugin(connector or record.default_connector, "connector", names, engine)
        self._refuse_broken(engine, patches)
        asked = _asked_for(tuple(fitting.values()), patches)
        others = [plugin for plugin in fitting.values() if _kind(plugin.record) == "site" or plugin in asked]
        return Selection(self._loaded[engine], chosen, others)

    def offered_patches(self, name: str, ctx: RankContext) -> tuple[Contribution[Patch], ...]:
        """What the patch plugin of that name offers, outside a plan; PluginError where its hook fails."""
        return offered_patches(self._loaded[name], ctx)

    def _records(self) -> Iterator[tuple[str, Engine | Extension]]:
        for name, plugin in self._loaded.items():
            yield name, plugin.record

    def _plugin(self, name: str, kind: str, names: Sequence[str], engine: str = "") -> LoadedPlugin:
        """The plugin of that name, which must be one of ``names``."""
        if name in names:
            return self._loaded[name]
        for problem in self._problems:
            if problem.name == name:
                raise PluginError(str(problem), remedy=f"mend it, or use another {kind}") from problem.cause
        known = ", ".join(names) or "none"
        if name in self._disabled:
            raise SpecError(f"{kind} {name!r} is disabled", remedy=f"take it out of {DISABLE}; usable are: {known}")
        found = self._loaded.get(name)
        if found is not None and _kind(found.record) != kind:
            raise SpecError(f"{name!r} is no {kind}, its kind is {_kind(found.record)}", remedy=f"use {known}")
        if found is not None:
            raise SpecError(f"{kind} {name!r} is not for engine {engine!r}", remedy=f"use {known}")
        longer = [each for each in names if each.startswith(f"{name}-")]
        near = longer[0] if len(longer) == 1 else nearest(name, names)
        hint = (f"did you mean {near!r}? " if near else "") + (
            f"installed are: {known}" if names else f"install a plugin that brings one: no {kind} is there"
        )
        raise SpecError(f"unknown {kind} {name!r}" + (f" for engine {engine!r}" if engine else ""), remedy=hint)

    def _refuse_broken(self, engine: str, patches: Sequence[str]) -> None:
        for problem in self._problems:
            record = problem.record
            if record is not None and not (_fits(record, engine) and _kind(record) in ("site", "patches")):
                continue
            if record is not None and _kind(record) == "patches" and not patches:
                continue
            switch = f"set {DISABLE}={problem.name}" if problem.distribution else "do not register it"
            raise PluginError(
                str(problem), remedy=f"the plan might need it; to go on without it {switch}"
            ) from problem.cause


def _kind(record: Engine | Extension) -> str:
    return "engine" if isinstance(record, Engine) else record.kind


def _fits(record: Engine | Extension, engine: str) -> bool:
    return isinstance(record, Extension) and (record.engines == "all" or engine in record.engines)


def _asked_for(plugins: Sequence[LoadedPlugin], patches: Sequence[str]) -> list[LoadedPlugin]:
    """The patch plugins that a list of names brings into a plan."""
    sets = {
        plugin.name: {plugin.name, *plugin.record.patch_sets}
        for plugin in plugins
        if isinstance(plugin.record, Extension) and plugin.record.kind == "patches"
    }
    single = [name for name in patches if not any(name in names for names in sets.values())]
    return [plugin for plugin in plugins if plugin.name in sets and (single or sets[plugin.name] & set(patches))]


def _read_models(engine: Engine) -> tuple[ModelRow, ...]:
    """An engine's rows, each checked, with the plugin named in whatever goes wrong."""
    try:
        rows = tuple(engine.models())
    except DisaggError as error:
        name_plugin(error, engine.name, "model table")
        raise
    except (Exception, SystemExit) as error:
        raise PluginError(f"plugin {engine.name!r} failed to give its models: {one_line(error)}") from error
    for row in rows:
        if not isinstance(row, ModelRow):
            raise PluginError(f"plugin {engine.name!r} has {describe(row)} among its models, a ModelRow is expected")
    return rows
