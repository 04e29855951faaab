"""The plugins of one plan, and one typed method for each of their hooks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import Any, Generic, TypeVar, cast

import attrs

from disagg_run.context import ProcessContext, RankContext
from disagg_run.declarations import Engine, Extension, Setting, SharedValue
from disagg_run.errors import ConflictError, DisaggError, PluginError
from disagg_run.host_loading import LoadedPlugin, name_plugin, one_line
from disagg_run.host_stamping import Stamp, WrongRecord, describe
from disagg_run.planning.document import PluginUsed
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
from disagg_run.sources import Layer, Source
from disagg_run.spec.model import frozen_map

T = TypeVar("T")

#: Layer at which a plugin's values stand where it gives no source of its own. Patch sets are asked for by name, so they
#: come after engine and connector, like site plugins.
_LAYERS = {"connector": Layer.CONNECTOR, "site": Layer.SITE, "patches": Layer.SITE}


@attrs.frozen
class Contribution(Generic[T]):
    """One record that a hook returned."""

    record: T
    #: Name of the plugin that returned it.
    plugin: str


@attrs.frozen
class _Implementation:
    """One plugin's function for one hook, ready to be called."""

    function: Callable[..., Any]
    takes_context: bool
    plugin: str
    stamp: Stamp


def layer_of(plugin: LoadedPlugin) -> Layer:
    """The layer of a plugin's values, by its kind."""
    return Layer.ENGINE if isinstance(plugin.record, Engine) else _LAYERS[plugin.record.kind]


class Selection:
    """The plugins that one plan calls: its engine, one connector, the site plugins that fit, the patch sets asked for.

    Each hook method returns what all of them gave, in the order of plugin names; every record says by its source which
    plugin set it. Whatever a plugin does wrong is a PluginError that names plugin, hook and process.
    """

    def __init__(self, engine: LoadedPlugin, connector: LoadedPlugin, others: Iterable[LoadedPlugin] = ()) -> None:
        self._members = tuple(sorted((engine, connector, *others), key=lambda plugin: plugin.name))
        self.engine = cast("Engine", engine.record)
        self.connector = cast("Extension", connector.record)
        self._implementations: dict[str, tuple[_Implementation, ...]] = {}

    @cached_property
    def plugins(self) -> tuple[PluginUsed, ...]:
        """Who they are, by name."""
        return tuple(
            PluginUsed(name=plugin.name, distribution=plugin.distribution, version=plugin.version)
            for plugin in self._members
        )

    @cached_property
    def settings(self) -> Mapping[str, Setting]:
        """The settings that they declare, by name; ConflictError where two declare one name differently."""
        found: dict[str, tuple[Setting, str]] = {}
        for plugin in self._members:
            for setting in plugin.record.settings:
                other, owner = found.setdefault(setting.name, (setting, plugin.name))
                if other != setting:
                    raise ConflictError(
                        f"plugins {owner!r} and {plugin.name!r} declare the setting {setting.name!r} differently",
                        remedy=f"disable one of them with DISAGG_RUN_DISABLE={plugin.name}",
                    )
        return frozen_map({name: setting for name, (setting, _) in sorted(found.items())})

    @cached_property
    def parity(self) -> tuple[SharedValue, ...]:
        """What prefill and decode must share, by all of them, each once."""
        return tuple(dict.fromkeys(shared for plugin in self._members for shared in plugin.record.parity))

    @cached_property
    def waivable(self) -> Mapping[str, str]:
        """Further checks of theirs that ``--waive`` lets through, by name, and what that lets through."""
        return frozen_map({name: what for plugin in self._members for name, what in plugin.record.waivable.items()})

    def services(self, ctx: RankContext) -> tuple[Contribution[ServiceProcess], ...]:
        """Service and setup processes of a rank."""
        return self._call("disagg_services", ServiceProcess, ctx)

    def readiness(self, ctx: ProcessContext) -> tuple[Contribution[Listener], ...]:
        """Listeners of a server or router; ConflictError where two plugins use one listener name."""
        found = self._call("disagg_readiness", Listener, ctx)
        owners: dict[str, str] = {}
        for item in found:
            owner = owners.setdefault(item.record.name, item.plugin)
            if owner != item.plugin:
                raise ConflictError(
                    f"plugins {owner!r} and {item.plugin!r} both name a listener {item.record.name!r} in "
                    f"disagg_readiness for {ctx.process.name}",
                    remedy="one of them must choose another name",
                )
        return found

    def server_command(self, ctx: ProcessContext) -> Contribution[Command]:
        """The command of a server; ConflictError unless exactly one plugin answers."""
        return self._exactly_one("disagg_server_command", Command, ctx)

    def router_command(self, ctx: ProcessContext) -> Contribution[Command]:
        """The command of the router; ConflictError unless exactly one plugin answers."""
        return self._exactly_one("disagg_router_command", Command, ctx)

    def args(self, ctx: ProcessContext) -> tuple[Contribution[Flag], ...]:
        """Further flags of a server or router."""
        return self._call("disagg_args", Flag, ctx)

    def env(self, ctx: ProcessContext) -> tuple[Contribution[EnvSetting], ...]:
        """Variables of a server or router."""
        return self._call("disagg_env", EnvSetting, ctx)

    def patches(self, ctx: RankContext) -> tuple[Contribution[Patch], ...]:
        """Source patches on offer for a rank; which of them were asked for is the caller's to see."""
        return self._call("disagg_patches", Patch, ctx)

    def container(self, ctx: RankContext) -> tuple[Contribution[ContainerNeeds], ...]:
        """What the engine's container needs on a rank."""
        return self._call("disagg_container", ContainerNeeds, ctx)

    def preflight(self, ctx: RankContext) -> tuple[Contribution[Preflight], ...]:
        """Checks to make on a node."""
        return self._call("disagg_preflight", Preflight, ctx)

    def simulation(self, ctx: ProcessContext) -> tuple[Contribution[Simulation], ...]:
        """The stand-in of a process, or nothing; ConflictError where there are several."""
        found = self._call("disagg_simulation", Simulation, ctx)
        if len(found) > 1:
            raise ConflictError(
                f"{_who(found)} answer disagg_simulation for {_place(ctx)}, one at most may",
                remedy=_choice(found),
            )
        return found

    def workload(self, ctx: RankContext) -> tuple[Contribution[Workload], ...]:
        """Benchmarks to run against the router."""
        return self._call("disagg_workload", Workload, ctx)

    def _exactly_one(self, hook: str, wanted: type[T], ctx: ProcessContext) -> Contribution[T]:
        found = self._call(hook, wanted, ctx)
        if len(found) == 1:
            return found[0]
        if found:
            raise ConflictError(
                f"{_who(found)} answer {hook} for {_place(ctx)}, exactly one must", remedy=_choice(found)
            )
        asked = ", ".join(repr(item.plugin) for item in self._of(hook)) or "none of them has the hook"
        raise ConflictError(
            f"no plugin of the plan answers {hook} for {_place(ctx)} (asked: {asked})",
            remedy=f"the engine {self.engine.name!r} or its connector {self.connector.name!r} must return a command",
        )

    def _of(self, hook: str) -> tuple[_Implementation, ...]:
        known = self._implementations.get(hook)
        if known is None:
            known = self._implementations[hook] = tuple(
                _prepare(plugin, hook) for plugin in self._members if hook in plugin.hooks
            )
        return known

    def _call(self, hook: str, wanted: type[T], ctx: RankContext) -> tuple[Contribution[T], ...]:
        found: list[Contribution[T]] = []
        for item in self._of(hook):
            for record in _records(item, hook, wanted, ctx):
                found.append(Contribution(record, item.plugin))
        return tuple(found)


def offered_patches(plugin: LoadedPlugin, ctx: RankContext) -> tuple[Contribution[Patch], ...]:
    """What one patch plugin offers, outside a plan; PluginError where its hook fails."""
    if "disagg_patches" not in plugin.hooks:
        return ()
    item = _prepare(plugin, "disagg_patches")
    return tuple(Contribution(record, item.plugin) for record in _records(item, "disagg_patches", Patch, ctx))


def _prepare(plugin: LoadedPlugin, hook: str) -> _Implementation:
    implementation = plugin.hooks[hook]
    return _Implementation(
        function=implementation.function,
        # pluggy 1.6 and 1.7 differ on arguments with a default, so the host calls the function itself.
        takes_context="ctx" in (*implementation.argnames, *implementation.kwargnames),
        plugin=plugin.name,
        stamp=Stamp(Source(layer=layer_of(plugin), plugin=plugin.name)),
    )


def _records(item: _Implementation, hook: str, wanted: type[T], ctx: RankContext) -> tuple[T, ...]:
    """Call one implementation and check what it gives; all of it in here, for a generator fails after the call."""
    try:
        answer = item.function(ctx) if item.takes_context else item.function()
        if answer is None or isinstance(answer, (wanted, str, bytes, Mapping)) or not hasattr(answer, "__iter__"):
            raise WrongRecord(f"{_wrong_answer(answer, wanted)}")
        records: list[T] = []
        for record in answer:
            if not isinstance(record, wanted):
                raise WrongRecord(f"{describe(record)}, {wanted.__name__} is expected")
            records.append(item.stamp.record(record))
        return tuple(records)
    except DisaggError as error:
        name_plugin(error, item.plugin, _place(ctx))
        raise
    except WrongRecord as error:
        raise PluginError(f"plugin {item.plugin!r} returned from {hook} for {_place(ctx)} {error}") from error
    except (Exception, SystemExit) as error:
        raise PluginError(f"plugin {item.plugin!r} failed in {hook} for {_place(ctx)}: {one_line(error)}") from error


def _wrong_answer(answer: object, wanted: type) -> str:
    name = wanted.__name__
    if answer is None:
        return f"None, an iterable of {name} is expected: return () where there is nothing to add"
    if isinstance(answer, wanted):
        return f"a bare {name}, an iterable of {name} is expected: return [{name}(...)]"
    return f"{describe(answer)}, an iterable of {name} is expected"


def _place(ctx: RankContext) -> str:
    return ctx.process.name if isinstance(ctx, ProcessContext) else f"rank {ctx.rank}"


def _choice(found: Iterable[Contribution[Any]]) -> str:
    several = len({item.plugin for item in found}) > 1
    return "leave out all but one with DISAGG_RUN_DISABLE" if several else "the plugin must return one record"


def _who(found: Iterable[Contribution[Any]]) -> str:
    names = [item.plugin for item in found]
    if len(set(names)) == 1:
        return f"plugin {names[0]!r} gives {len(names)} records, which all"
    return "plugins " + " and ".join(repr(name) for name in names)
