"""What prefill and decode must have in common, compared once the commands are finished."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import attrs

from disagg_run.catalogue import Catalogue
from disagg_run.context import RankContext
from disagg_run.declarations import SharedValue
from disagg_run.errors import DisaggError, ParityError, PluginError
from disagg_run.flag_claims import dotted_key
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
    #: Of a whole JSON object, who set each leaf, by dotted key.
    leaves: Mapping[str, Source] = attrs.field(factory=dict)

    def said_by(self, other: _Given) -> str:
        """Who set what differs from ``other``: of two JSON objects, the leaves that are not alike."""
        mine, theirs = dict(_leaves(self.shown)), dict(_leaves(other.shown))
        differ = [key for key, value in mine.items() if key not in theirs or theirs[key] != value]
        sources = dict.fromkeys(str(self.leaves[key]) for key in differ if key in self.leaves)
        return " and ".join(sources) or str(self.source)


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
                f"{value.name} is {_shown(here.shown)} for {first.process} ({here.said_by(there)}) but"
                f" {_shown(there.shown)} for {side.process} ({there.said_by(here)}){f', and {why}' if why else ''}"
            )
    return None


def _shown(value: Any) -> str:
    return "not set" if value is None else repr(value)


def _given(shared: SharedValue, side: Side) -> _Given:
    if shared.computed is not None:
        value, source = _computed(shared, shared.computed, side)
        return _Given(value, value, source)
    if shared.env:
        provenance = side.env.provenance.get(f"env/{shared.env}")
        text = side.env.env.get(shared.env) if provenance else None
        return _Given(text, _meaning(shared, side, text, text), provenance[0][0] if provenance else CORE_DEFAULT)
    value, source = flag_value(side.flags, side.catalogue, shared.flag, shared.key)
    meant = json_meaning(value) if shared.key else flag_meaning(_occurrences(shared, side), side.catalogue)
    if value is not None and (shared.key or meant is not None):
        leaves = {} if shared.key else _leaf_sources(shared, side)
        return _Given(value, _meaning(shared, side, value, meant), source, leaves)
    spec = side.catalogue.lookup(shared.flag) if side.catalogue else None
    default = None if shared.key else getattr(spec, "default", None)
    shown = None if default is None else _comparable(default)
    meant = None if shared.key else default_meaning(spec)
    return _Given(shown, _meaning(shared, side, shown, meant), f"the engine's own default of {shared.flag}")


def _computed(shared: SharedValue, function: Callable[..., Any], side: Side) -> tuple[Any, Source]:
    answer = _called(shared, function, side, side.context, side.role)
    if not (isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[1], Source)):
        raise PluginError(
            f"{function.__name__}, which computes {shared.name} of {side.role}, answers {answer!r}",
            remedy="let it answer the value and its Source",
        )
    return answer


def _leaf_sources(shared: SharedValue, side: Side) -> dict[str, Source]:
    return {key: source for flag in _occurrences(shared, side) for key, source in flag.leaf_sources.items()}


def _leaves(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """The leaves of a JSON object by dotted key, as ``leaf_sources`` has them; nothing of any other value."""
    for key, item in value.items() if isinstance(value, Mapping) else ():
        if isinstance(item, Mapping) and item:
            yield from _leaves(item, (*path, key))
        else:
            yield dotted_key((*path, key)), json_meaning(item)


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
