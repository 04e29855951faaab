"""A single value looked up on a finished command."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from disagg_run.catalogue import Catalogue
from disagg_run.flag_claims import dotted_key
from disagg_run.flags import MergedFlag, json_leaf
from disagg_run.sources import CORE_DEFAULT, Source


def flag_value(
    flags: Iterable[MergedFlag], catalogue: Catalogue | None, name: str, key: tuple[str, ...] = ()
) -> tuple[Any, Source]:
    """The value of the flag ``name`` (under any of its names), or of a ``key`` path in its JSON, and who set it.

    Words are joined by blanks, a switch is its own name; (None, core default) where the flag or key is absent.
    """
    for flag in flags_called(flags, catalogue, name):
        return _value(flag, key)
    return None, CORE_DEFAULT


def flags_called(flags: Iterable[MergedFlag], catalogue: Catalogue | None, name: str) -> Iterator[MergedFlag]:
    """The flag ``name``, under any of its names: one at most, all occurrences of a repeatable one."""
    spec = catalogue.lookup(name) if catalogue else None
    for flag in flags:
        if flag.name == name or (spec is not None and catalogue is not None and catalogue.lookup(flag.name) is spec):
            yield flag


def _value(flag: MergedFlag, key: tuple[str, ...]) -> tuple[Any, Source]:
    if not key:
        if flag.json is not None:
            return flag.json, flag.source
        return (" ".join(flag.values) if flag.values else flag.name), flag.source
    return json_leaf(flag.json, key), flag.leaf_sources.get(dotted_key(key), flag.source)
