"""Finding and loading plugins, one name at a time, so that one broken plugin never hides another."""

from __future__ import annotations

import importlib.metadata
import inspect
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

import attrs
import pluggy

from disagg_run import hookspecs
from disagg_run.declarations import Engine, Extension
from disagg_run.errors import DisaggError
from disagg_run.near_miss import did_you_mean
from disagg_run.spec.model import frozen_map

GROUP = "disagg_run"
KINDS = ("connector", "site", "patches")
HOOKS: tuple[str, ...] = tuple(name for name in vars(hookspecs) if name.startswith("disagg_"))


@attrs.frozen(kw_only=True)
class PluginProblem:
    """A plugin that cannot be used, and why; the others are not touched by it."""

    #: The entry point's name, or the object's name for a plugin registered by a program.
    name: str
    #: Distributions that offer it, comma separated; "" for a plugin registered by a program.
    distribution: str
    #: What is wrong, in one line.
    reason: str
    #: The record by which it said what it is; None where it did not get so far.
    record: Engine | Extension | None = attrs.field(default=None, eq=False, repr=False)
    #: The exception behind it, if there is one.
    cause: BaseException | None = attrs.field(default=None, eq=False, repr=False)

    def __str__(self) -> str:
        return f"plugin {self.name!r}{origin(self.distribution)} {self.reason}"


@attrs.frozen(kw_only=True)
class LoadedPlugin:
    """A healthy plugin."""

    name: str
    #: Distribution that brought it, and its version; "" for a plugin registered by a program.
    distribution: str
    version: str
    record: Engine | Extension
    #: Its implementations by hook name.
    hooks: Mapping[str, pluggy.HookImpl] = attrs.field(converter=frozen_map, eq=False)


@attrs.frozen(kw_only=True)
class _Offer:
    """A plugin before it is loaded."""

    #: Name of the entry point; "" for a plugin registered by a program, whose record says it.
    name: str
    label: str
    load: Callable[[], object]
    distribution: str = ""
    version: str = ""


def origin(distribution: str) -> str:
    """`` (distribution 'x')`` for messages; "" for a plugin that no distribution brought."""
    return f" (distribution {distribution!r})" if distribution else ""


def one_line(error: BaseException) -> str:
    """``KeyError('foo')``: an exception as one line of text."""
    return " ".join(repr(error).split())


def name_plugin(error: DisaggError, plugin: str, where: str) -> None:
    """Put ``where`` and a plugin's name in front of its own refusal, unless it is named already.

    Class and exit code stay. Which hook refused is no matter of who asked for something, and is not said.
    """
    if f"plugin {plugin!r}" not in error.message:
        place = f"{where} (plugin {plugin!r})" if where and where not in error.message else f"plugin {plugin!r}"
        error.message = f"{place}: {error.message}"
        error.args = (f"{error.message}: {error.remedy}" if error.remedy else error.message,)


def load_plugins(
    manager: pluggy.PluginManager, *, given: Iterable[object], disabled: Collection[str], entry_points: bool
) -> tuple[tuple[LoadedPlugin, ...], tuple[PluginProblem, ...]]:
    """Load plugins registered by a program, then those of the entry points whose names are not disabled, by name.

    A plugin that the program registers takes the place of an installed one of its name. Two distributions that offer
    one name are both refused, since nothing says which of them is meant.
    """
    loaded: dict[str, LoadedPlugin] = {}
    problems: list[PluginProblem] = []
    for index, plugin in enumerate(given):
        _take(manager, _given_offer(manager, plugin, index), loaded, problems)
    installed = _installed_offers() if entry_points else {}
    for name in sorted(installed):
        if name in disabled or name in loaded:
            continue
        if len(installed[name]) > 1:
            problems.append(_offered_twice(name, installed[name]))
        else:
            _take(manager, installed[name][0], loaded, problems)
    return tuple(loaded[name] for name in sorted(loaded)), tuple(sorted(problems, key=lambda problem: problem.name))


def _take(
    manager: pluggy.PluginManager, offer: _Offer, loaded: dict[str, LoadedPlugin], problems: list[PluginProblem]
) -> None:
    outcome = _load(manager, offer)
    if isinstance(outcome, PluginProblem):
        problems.append(outcome)
    elif outcome.name in loaded:
        problems.append(PluginProblem(name=outcome.name, distribution="", reason="is registered twice by the program"))
    else:
        loaded[outcome.name] = outcome


def _given_offer(manager: pluggy.PluginManager, plugin: object, index: int) -> _Offer:
    label = str(getattr(plugin, "__name__", type(plugin).__name__))
    return _Offer(name="", label=label if not manager.has_plugin(label) else f"{label}#{index}", load=lambda: plugin)


def _installed_offers() -> dict[str, list[_Offer]]:
    offers: dict[str, list[_Offer]] = {}
    known: dict[int, tuple[str, str]] = {}
    for point in importlib.metadata.entry_points(group=GROUP):
        distribution, version = "", ""
        if point.dist is not None:
            if id(point.dist) not in known:
                known[id(point.dist)] = (point.dist.name, point.dist.version)
            distribution, version = known[id(point.dist)]
        offer = _Offer(name=point.name, label=point.name, load=point.load, distribution=distribution, version=version)
        offers.setdefault(point.name, []).append(offer)
    return offers


def _offered_twice(name: str, offers: list[_Offer]) -> PluginProblem:
    distributions = sorted(offer.distribution for offer in offers)
    return PluginProblem(
        name=name,
        distribution=", ".join(distributions),
        reason=f"is offered by {len(offers)} distributions, so none of them is used: uninstall all but one",
    )


def _load(manager: pluggy.PluginManager, offer: _Offer) -> LoadedPlugin | PluginProblem:
    def problem(
        reason: str, cause: BaseException | None = None, record: Engine | Extension | None = None
    ) -> PluginProblem:
        named = record.name if record is not None and not offer.name else offer.label
        return PluginProblem(name=named, distribution=offer.distribution, reason=reason, cause=cause, record=record)

    try:
        plugin = offer.load()
        if inspect.isclass(plugin):
            plugin = plugin()
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a plugin's own code runs here, whatever it raises is its fault
        return problem(f"cannot be imported: {one_line(error)}", error)
    try:
        manager.register(plugin, name=offer.label)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - pluggy looks at the plugin's attributes, which may raise
        _drop(manager, plugin, offer.label)
        return problem(_unfit(manager, plugin) or f"cannot be registered: {one_line(error)}", error, _record(plugin))
    try:
        record, reason, cause = _introduce(manager, plugin, offer.name)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the plugin's disagg_plugin runs here
        record, reason, cause = None, f"failed in disagg_plugin: {one_line(error)}", error
    reason = reason or _unusable_hooks(manager, plugin)
    if reason or record is None:
        _drop(manager, plugin, offer.label)
        return problem(reason, cause, record)
    return LoadedPlugin(
        name=record.name,
        distribution=offer.distribution,
        version=offer.version,
        record=record,
        hooks={name: implementation for name, implementation in _implementations(manager, plugin) if name in HOOKS},
    )


def _drop(manager: pluggy.PluginManager, plugin: object, label: str) -> None:
    # pluggy before 1.7 keeps a plugin whose registration failed half way.
    if manager.get_plugin(label) is plugin:
        manager.unregister(plugin, label)


def _implementations(manager: pluggy.PluginManager, plugin: object) -> Iterator[tuple[str, pluggy.HookImpl]]:
    for caller in manager.get_hookcallers(plugin) or ():
        for implementation in caller.get_hookimpls():
            if implementation.plugin is plugin:
                yield caller.name, implementation


def _introduce(
    manager: pluggy.PluginManager, plugin: object, name: str
) -> tuple[Engine | Extension | None, str, BaseException | None]:
    """What the plugin says it is, or what is wrong with that."""
    implementation = dict(_implementations(manager, plugin)).get("disagg_plugin")
    if implementation is None:
        marked = hasattr(plugin, "disagg_plugin")
        return None, f"has no disagg_plugin hook{': mark the function with @hookimpl' if marked else ''}", None
    record: Any = implementation.function()
    if not isinstance(record, (Engine, Extension)):
        return None, f"returned {type(record).__name__} from disagg_plugin, an Engine or Extension is expected", None
    if not isinstance(record.name, str) or not record.name:
        return None, f"gave {record.name!r} as its name in disagg_plugin, a text is expected", None
    if name and record.name != name:
        return record, f"calls itself {record.name!r} in disagg_plugin: it must be the entry point's name", None
    if isinstance(record, Extension):
        if record.kind not in KINDS:
            return None, f"has the kind {record.kind!r} in disagg_plugin: it may be {', '.join(KINDS)}", None
        if record.engines != "all" and (isinstance(record.engines, str) or not all(record.engines)):
            return None, f"has engines={record.engines!r} in disagg_plugin: give a tuple of names, or 'all'", None
    return record, "", None


def _record(plugin: object) -> Engine | Extension | None:
    """What a plugin that pluggy refused says it is, if it can; its kind tells which plans might need it."""
    try:
        record = plugin.disagg_plugin()  # type: ignore[attr-defined]
    except Exception:  # noqa: BLE001 - the plugin is broken already, and its first fault is the one to tell
        return None
    return record if isinstance(record, (Engine, Extension)) else None


def _unfit(manager: pluggy.PluginManager, plugin: object) -> str:
    """Which implementation takes an argument that its hook does not have; "" = none."""
    for name in dir(plugin):
        if name in HOOKS and manager.parse_hookimpl_opts(plugin, name) is not None:
            known = inspect.signature(getattr(hookspecs, name)).parameters
            unknown = [word for word in inspect.signature(getattr(plugin, name)).parameters if word not in known]
            if unknown:
                has = " and ".join(repr(word) for word in known) or "no argument"
                return f"takes {unknown[0]!r} in {name}, which has {has}"
    return ""


def _unusable_hooks(manager: pluggy.PluginManager, plugin: object) -> str:
    """Which implementations the host could not call as it calls all others; "" = none."""
    for hook, implementation in _implementations(manager, plugin):
        if implementation.hookwrapper or getattr(implementation, "wrapper", False):
            return f"has a wrapper for {hook}: hooks are called one by one, return records instead"
    try:
        manager.check_pending()
    except pluggy.PluginValidationError:
        unknown = [name for name, found in _implementations(manager, plugin) if _pending(manager, name, found)]
        return "; ".join(f"implements the unknown hook {name!r}{_nearest(name)}" for name in sorted(unknown))
    return ""


def _pending(manager: pluggy.PluginManager, name: str, implementation: pluggy.HookImpl) -> bool:
    caller: pluggy.HookCaller = getattr(manager.hook, name)
    return not caller.has_spec() and not implementation.optionalhook


def _nearest(name: str) -> str:
    return ": " + (did_you_mean(name, HOOKS) or f"hooks are {', '.join(HOOKS)}")
