"""What prefill and decode must have in common, compared once the commands are finished."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import attrs

from disagg_run.catalogue import Catalogue
from disagg_run.context import RankContext
from disagg_run.declarations import SharedValue
from disagg_run.errors import DisaggError, ParityError, PluginError
from disagg_run.flag_meaning import default_meaning, flag_meaning, json_meaning
from disagg_run.flags import MergedFlag
from disagg_run.planning.document import Remark
from disagg_run.planning.environment import MergedEnv
from disagg_run.planning.resolve import in_range
from disagg_run.planning.values import flag_value, flags_called
from disagg_run.sources import CORE_DEFAULT, Source
from disagg_run.spec.model import Role


@attrs.frozen
class _Given:
    """What one worker has of a shared value."""

    #: As messages show it; None = nothing is given.
    shown: Any
    #: What it means to the engine: what is compared.
    meaning: Any
    source: Source | str


@attrs.frozen(kw_only=True)
class Side:
    """One worker's head, as the comparison sees it."""

    process: str
    role: Role
    context: RankContext
    flags: tuple[MergedFlag, ...]
    env: MergedEnv
    catalogue: Catalogue | None


def check_parity(
    shared: Iterable[SharedValue], sides: Sequence[Side], *, version: str, engine: str, waive: Iterable[str]
) -> tuple[Remark, ...]:
    """Compare every worker with the first; returns the differences that ``waive`` lets through.

    Raises ParityError with both values and their sources.
    """
    waived = []
    for value in shared:
        if not in_range(version, value.versions, plugin=engine):
            continue
        difference = _first_difference(value, sides)
        if difference is None:
            continue
        if value.name not in waive:
            raise ParityError(difference, remedy=f"make them equal, or let it through with --waive {value.name}")
        waived.append(Remark(message=difference, source=value.name))
    return tuple(waived)


def _first_difference(value: SharedValue, sides: Sequence[Side]) -> str | None:
    if not sides:
        return None
    first = sides[0]
    here = _given(value, first)
    for side in sides[1:]:
        there = _given(value, side)
        if here.meaning != there.meaning:
            why = _called(value, value.why, side, side.context) if callable(value.why) else value.why
            return (
                f"{value.name} is {_shown(here.shown)} for {first.process} ({here.source}) but"
                f" {_shown(there.shown)} for {side.process} ({there.source}){f', and {why}' if why else ''}"
            )
    return None


def _shown(value: Any) -> str:
    return "not set" if value is None else repr(value)


def _given(shared: SharedValue, side: Side) -> _Given:
    if shared.computed is not None:
        value = _called(shared, shared.computed, side, side.context, side.role)
        return _Given(value, value, f"by {shared.computed.__name__}")
    if shared.env:
        provenance = side.env.provenance.get(f"env/{shared.env}")
        text = side.env.env.get(shared.env) if provenance else None
        return _Given(text, _meaning(shared, side, text, text), provenance[0][0] if provenance else CORE_DEFAULT)
    value, source = flag_value(side.flags, side.catalogue, shared.flag, shared.key)
    meant = json_meaning(value) if shared.key else flag_meaning(_occurrences(shared, side), side.catalogue)
    if value is not None and (shared.key or meant is not None):
        return _Given(value, _meaning(shared, side, value, meant), source)
    spec = side.catalogue.lookup(shared.flag) if side.catalogue else None
    default = None if shared.key else getattr(spec, "default", None)
    shown = None if default is None else _comparable(default)
    meant = None if shared.key else default_meaning(spec)
    return _Given(shown, _meaning(shared, side, shown, meant), f"the engine's own default of {shared.flag}")


def _occurrences(shared: SharedValue, side: Side) -> tuple[MergedFlag, ...]:
    return tuple(flags_called(side.flags, side.catalogue, shared.flag))


def _meaning(shared: SharedValue, side: Side, value: Any, meant: Any) -> Any:
    return meant if shared.meaning is None else _called(shared, shared.meaning, side, value)


def _called(shared: SharedValue, function: Callable[..., Any], side: Side, *arguments: Any) -> Any:
    """What a function of the plugin says of a shared value."""
    try:
        return function(*arguments)
    except DisaggError:
        raise
    except Exception as error:  # a plugin's own code runs here, whatever it raises is its fault
        name = function.__name__
        raise PluginError(f"{name}, which computes {shared.name} of {side.role}, failed: {error!r}") from error


def _comparable(default: Any) -> str:
    return default if isinstance(default, str) else json.dumps(default)
