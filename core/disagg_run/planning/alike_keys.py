"""Keys of JSON flags that are spelled nearly like one that the plan knows: a program takes them for others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from disagg_run.catalogue import Catalogue
from disagg_run.declarations import SharedValue
from disagg_run.errors import FlagError
from disagg_run.flag_claims import dotted_key
from disagg_run.flags import MergedFlag, json_leaf
from disagg_run.records import Flag

#: Path of a key in a JSON object.
_Path = tuple[str, ...]


def check_alike(
    planned: Iterable[Flag],
    shared: Iterable[SharedValue],
    merged: Iterable[MergedFlag],
    catalogue: Catalogue | None,
    where: str,
) -> None:
    """Refuse a key that differs in dashes and letter case only from one that the plan sets or compares.

    ``planned``: by plugins; ``shared``: what prefill and decode must have in common, set or not; ``merged``: what came
    of all; ``where``: role or process. Raises FlagError naming both keys and who set the one that nobody reads.
    """
    planned = tuple(planned)
    for given in merged:
        if given.json is None:
            continue
        identity = _identity(given.name, catalogue)
        own = {path for each in planned if _identity(each.name, catalogue) == identity for path in _paths(each.json)}
        compared = {each.key for each in shared if each.key and _identity(each.flag, catalogue) == identity}
        for path in sorted(own | compared):
            for other in spelled_alike(given.json, path):
                if other in own or other in compared:
                    continue
                key, meant = dotted_key(other), dotted_key(path)
                raise FlagError(
                    f"{key!r} of {given.name} of {where} ({given.leaf_sources.get(key, given.source)}) is another key"
                    f" than {meant!r}, which the plan {'sets' if path in own else 'knows'}",
                    remedy=f"write {meant}",
                )


def spelled_alike(value: Any, path: _Path) -> Iterator[_Path]:
    """Paths beside ``path`` whose last key differs in dashes and letter case only."""
    *above, last = path
    siblings = json_leaf(value, above)
    for key in siblings if isinstance(siblings, Mapping) else ():
        if key != last and key.replace("-", "_").lower() == last.replace("-", "_").lower():
            yield (*above, key)


def _paths(value: Any, above: _Path = ()) -> Iterator[_Path]:
    for key, item in value.items() if isinstance(value, Mapping) else ():
        yield (*above, key)
        yield from _paths(item, (*above, key))


def _identity(name: str, catalogue: Catalogue | None) -> str:
    spec = catalogue.lookup(name) if catalogue else None
    return spec.name if spec else name
