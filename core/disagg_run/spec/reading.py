"""``read_spec``: all layers of what a user asks, from the environment contract to the command line."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from disagg_run.declarations import Setting
from disagg_run.errors import SpecError
from disagg_run.input_files import read_text
from disagg_run.near_miss import did_you_mean
from disagg_run.sources import Layer, Source
from disagg_run.spec.assembly import Fold
from disagg_run.spec.environment import (
    RECIPE,
    contract,
    contract_connector,
    contract_settings,
    contract_unread,
    variables,
)
from disagg_run.spec.layers import AnyAssignment, Assignment, Place, SettingAssignment, assign
from disagg_run.spec.model import LaunchSpec
from disagg_run.spec.node_contract import check_node_contract
from disagg_run.spec.option import Option
from disagg_run.spec.options import by_dotted
from disagg_run.spec.values import BadValueError, setting_data, setting_value

if TYPE_CHECKING:
    from disagg_run.declarations import Engine
    from disagg_run.host import Host, Selection
    from disagg_run.spec.masterconfig_point import Point


def read_spec(
    *,
    options: Mapping[str, Any],
    recipe: Path | None,
    environ: Mapping[str, str],
    host: Host,
    point: Point | None = None,
) -> LaunchSpec:
    """What is asked, with the source of every value.

    ``options``: the command line, by the dotted path of the field (``prefill.tp``; ``tp`` for both roles) with texts as
    typed, booleans for switches, and a sequence of texts where an option may stand several times; None = not given.
    ``recipe``: run file; None = that of ``DISAGG_RUN_RECIPE``, else none. ``host``: knows the engines' settings.
    ``point``: of a master config's entry, in place of a run file.
    Layers, later wins: environment contract, run file, ``DISAGG_RUN_*``, command line.
    Raises SpecError with the place of what is wrong, and PluginError where a plugin that is asked for is broken.
    """
    filed = [*_recipe(recipe, environ)] if point is None else [*_instead_of_recipe(point, recipe, environ)]
    above = [*variables(environ), *_command_line(options)]
    given = [*contract(environ, {}), *filed, *above]
    record = _engine(given, host)
    if point is not None:
        filed += _of_engine(point, record, host, given)
    given = [*contract(environ, record.contract_unset), *contract_connector(environ, record), *filed, *above]
    selection = _selected(given, record, host)
    owners = f"{record.name} with {selection.connector.name}"
    asked = () if point is None else point.of_settings(selection.settings, record, owners)
    given = [*contract_settings(environ, selection.settings), *asked, *given]
    fold = Fold()
    fold.add(_resolved(given, selection.settings, owners))
    if ("model",) not in fold.values:
        raise SpecError(
            "no model is given", remedy=_how("model", f"`disagg-run models --engine {record.name}` lists them")
        )
    spec = fold.spec()
    if spec.source("nodes").layer is Layer.CONTRACT:
        check_node_contract(spec, environ)
    unread = [*contract_unread(environ, host, record), *(() if point is None else point.unread(record))]
    return attrs.evolve(spec, notices=(*spec.notices, *unread))


def _engine(given: Iterable[AnyAssignment], host: Host) -> Engine:
    record: Engine | None = _named_plugin(given, "engine", host.engine)
    if record is None:
        raise SpecError("no engine is given", remedy=_how("engine", f"one of {', '.join(host.engines()) or 'none'}"))
    return record


def _selected(given: list[AnyAssignment], engine: Engine, host: Host) -> Selection:
    """The engine's plugins with the connector and the patches that are asked for."""
    _named_plugin(given, "connector", lambda name: host.select(engine.name, name))
    connector = _winner(given, "connector")
    patches = [each.value for each in given if isinstance(each, Assignment) and each.path == ("patches",)]
    return host.select(engine.name, connector.value if connector else None, patches)


def _how(key: str, which: str) -> str:
    option = by_dotted()[key]
    return f"give {option.flag} NAME, {key} in a run file, or {option.contract[0]} in the environment: {which}"


def _recipe(recipe: Path | None, environ: Mapping[str, str]) -> Iterable[AnyAssignment]:
    path = recipe if recipe is not None else Path(environ[RECIPE]) if environ.get(RECIPE) else None
    if path is None:
        return ()
    from disagg_run.spec.runfile import run_file  # brings YAML, which not every launch needs

    return run_file(read_text(path, "run file"), path.name)


def _instead_of_recipe(point: Point, recipe: Path | None, environ: Mapping[str, str]) -> Iterable[AnyAssignment]:
    if recipe is not None or environ.get(RECIPE):
        what = "--recipe" if recipe is not None else f"environment variable {RECIPE}"
        raise SpecError(
            f"{what} and entry {point.entry!r} of a master config both say what to run",
            remedy="use one, and give what it leaves open as options",
        )
    return point.assignments


def _of_engine(point: Point, engine: Engine, host: Host, given: Iterable[AnyAssignment]) -> Iterable[AnyAssignment]:
    winner = _winner(given, "gpus_per_node")
    gpus: Any = winner.value if winner is not None else attrs.fields(LaunchSpec).gpus_per_node.default
    return list(point.of_engine(engine, [row.name for row in host.models(engine.name)], gpus))


def _command_line(options: Mapping[str, Any]) -> Iterator[AnyAssignment]:
    known = by_dotted()
    unknown = [name for name in options if name not in known]
    if unknown:
        raise SpecError(f"unknown option {unknown[0]!r}", remedy=did_you_mean(unknown[0], known))
    for name in sorted(options, key=lambda name: -len(known[name].fields)):
        option, value = known[name], options[name]
        place = Place(source=Source(layer=Layer.COMMAND_LINE, where=option.flag), text=option.flag)
        if value is None:
            continue
        for text in value if isinstance(value, (list, tuple)) else [value]:
            yield from assign(option, _as_text(option, text), place)


def _as_text(option: Option, value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, (bool, int, float)):
        return str(value).lower()
    raise TypeError(f"option {option.dotted!r} takes text, not {type(value).__name__}")


def _winner(given: Iterable[AnyAssignment], field: str) -> Assignment | None:
    found = None
    for each in given:
        if isinstance(each, Assignment) and each.path == (field,):
            found = each
    return found


def _named_plugin(given: Iterable[AnyAssignment], field: str, find: Callable[[str], Any]) -> Any:
    """The plugin record that a field names, with the field's place in the error where there is none."""
    winner = _winner(given, field)
    if winner is None:
        return None
    try:
        return find(winner.value)
    except SpecError as error:
        raise SpecError(f"{winner.place.text}: {error.message}", remedy=error.remedy) from None


def _resolved(given: Iterable[AnyAssignment], settings: Mapping[str, Setting], owners: str) -> Iterator[Assignment]:
    """All assignments with the settings' values read by the plugins' declarations."""
    for each in given:
        yield each if isinstance(each, Assignment) else _resolve(each, settings, owners)


def _resolve(given: SettingAssignment, settings: Mapping[str, Setting], owners: str) -> Assignment:
    setting = settings.get(given.name)
    if setting is None:
        option = by_dotted().get(given.name)
        if option is not None:
            remedy = f"it is an option: {option.flag}"
        else:
            remedy = did_you_mean(given.name, settings) or f"it has {', '.join(sorted(settings)) or 'none'}"
        raise given.place.error(f"{owners} has no setting {given.name!r}", remedy=remedy)
    try:
        if given.data is None:
            value = setting_value(setting, given.text)
        else:
            value = setting_data(setting, given.data, given.items)
    except BadValueError as error:
        raise given.place.error(str(error), remedy=setting.summary) from None
    path = (*given.path, given.name)
    return Assignment(path=path, type="settings", value=value, place=given.place, key=".".join(path), text=given.text)
