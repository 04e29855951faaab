"""Which patches go before which: requirements first, names otherwise, so that the result never depends on chance."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence

from disagg_run.errors import PatchError
from disagg_run.records import Edit, Patch


def in_order(patches: Sequence[Patch]) -> tuple[Patch, ...]:
    """The patches with each after those that it requires, and by id where that leaves a choice.

    Raises PatchError for a requirement that is not among them, for requirements in a circle, and for two of one id.
    """
    by_id = {patch.id: patch for patch in patches}
    if len(by_id) != len(patches):
        twice = next(patch.id for patch in patches if sum(each.id == patch.id for each in patches) > 1)
        raise PatchError(f"two patches are called {twice!r}", remedy="one of the plugins must choose another id")
    ordered: dict[str, Patch] = {}
    for name in sorted(by_id):
        _add(name, by_id, ordered, ())
    return tuple(ordered.values())


def _add(name: str, by_id: Mapping[str, Patch], ordered: dict[str, Patch], above: tuple[str, ...]) -> None:
    if name in ordered:
        return
    if name in above:
        raise PatchError(f"patches require each other in a circle: {' -> '.join((*above, name))}")
    if name not in by_id:
        near = difflib.get_close_matches(name, by_id, 1)
        raise PatchError(
            f"patch {above[-1]!r} requires {name!r}, which is not there",
            remedy=f"did you mean {near[0]!r}?" if near else f"name {name!r} too",
        )
    for required in sorted(by_id[name].requires):
        _add(required, by_id, ordered, (*above, name))
    ordered[name] = by_id[name]


def closure(patch: Patch, by_id: Mapping[str, Patch]) -> frozenset[str]:
    """The ids of a patch and of all that it requires, as far as they are in ``by_id``."""
    found: set[str] = set()
    waiting = [patch.id]
    while waiting:
        name = waiting.pop()
        if name not in found and (name == patch.id or name in by_id):
            found.add(name)
            waiting += (patch if name == patch.id else by_id[name]).requires
    return frozenset(found)


def file_of(patch: Patch, edit: Edit) -> str:
    """The file that an edit changes, relative to the import root.

    Raises PatchError for a path that is absolute or leaves the import root.
    """
    name = edit.file or patch.file
    if not is_inside(name):
        raise PatchError(
            f"patch {patch.id!r} names the file {name!r}", remedy="name it relative to the import root: 'toy/server.py'"
        )
    return name


def is_inside(name: str) -> bool:
    """Whether a path is relative and stays below the import root."""
    return "\0" not in name and all(part not in ("", ".", "..") for part in name.split("/"))


def files_of(patch: Patch) -> tuple[str, ...]:
    """The files that a patch changes, in the order of its edits."""
    return tuple(dict.fromkeys(file_of(patch, edit) for edit in patch.edits))


def tops_of(patch: Patch) -> frozenset[str]:
    """The top-level packages and modules that a patch is about, also where a plan carries it without its edits."""
    return frozenset(top_of(name) for name in (*files_of(patch), patch.file) if name)


def top_of(file: str) -> str:
    """The top-level package or module of a file: ``toy`` of ``toy/server.py``."""
    first = file.split("/")[0]
    return first[:-3] if "/" not in file and first.endswith(".py") else first
