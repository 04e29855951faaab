"""Which of the offered patches a plan carries: those asked for, what they require, in order, for one version."""

from __future__ import annotations

import ast
import difflib
import textwrap
from collections.abc import Sequence

import attrs

from disagg_run.errors import ConflictError, PatchError, SpecError
from disagg_run.patching.fitting import NotNeeded, Outside, for_version, pinned
from disagg_run.patching.matching import parse
from disagg_run.patching.ordering import closure, file_of, files_of, in_order
from disagg_run.patching.soundness import check_sound
from disagg_run.records import Edit, Patch
from disagg_run.spec.model import as_tuple


@attrs.frozen(kw_only=True)
class Selected:
    """The patches of a plan."""

    #: In the order in which they build on each other, each with the edits of the planned version alone. One that is not
    #: needed is here too, without edits: the node then sees to it that the installed version is one that needs none.
    patches: tuple[Patch, ...] = attrs.field(converter=as_tuple)
    #: One sentence for each optional patch that was asked for and that the plan goes without.
    left_out: tuple[str, ...] = attrs.field(default=(), converter=as_tuple)

    @property
    def changing(self) -> tuple[Patch, ...]:
        """Those that change files."""
        return tuple(patch for patch in self.patches if patch.edits)


def select_patches(
    offered: Sequence[Patch],
    wanted: Sequence[str],
    version: str,
    *,
    distributions: Sequence[str] | None = None,
    forbid: bool = False,
    waiver: str = "",
) -> Selected:
    """The patches that ``wanted`` names, by id or set, with those that they require.

    ``version``: the engine version that is planned for; it says which edits are meant for the patches of the
    packages in ``distributions`` (None = of every patch), the others are settled on the node. ``forbid``: source
    patches are against the rules; those that a setting replaces, or that are not needed, may be asked for all the same.
    ``waiver``: reference under which the engine may be changed, for the ledger of each node.
    Raises SpecError for an unknown name (with the nearest), ConflictError for two patches of one id, and PatchError for
    a required patch that is not for this version, for patches that change one place, and for any under ``forbid``.
    """
    patches: list[Patch] = []
    left_out: list[str] = []
    for patch in named_patches(offered, wanted):
        if distributions is not None and not set(distributions) & set(patch.package):
            patches.append(attrs.evolve(patch, waiver=waiver))
            continue
        found = _settled(patch, version)
        if isinstance(found, Outside):
            left_out.append(_left_out(patch, f"{found.reason}, not for version {version}"))
        else:
            patches.append(attrs.evolve(found, waiver=waiver) if found.edits else found)
    kept = _without_absent(patches)
    left_out += [_left_out(patch, "it requires one that is left out") for patch in patches if patch not in kept]
    selected = Selected(patches=kept, left_out=left_out)
    check_overlaps(selected.changing)
    if forbid:
        _check_unchanged(selected.changing)
    return selected


def _settled(patch: Patch, version: str) -> Patch | Outside:
    """A patch as a plan for ``version`` has it, without edits where none is needed; PatchError where it must fit."""
    found = for_version(patch, version)
    if isinstance(found, NotNeeded):
        file = ", ".join(files_of(patch)[:1])  # for a node that has another version, which says what is not changed
        return attrs.evolve(patch, edits=(), digests=(), file=patch.file or file, planned_for=version)
    if not isinstance(found, Outside):
        return pinned(patch, version)
    if patch.required:
        raise PatchError(
            f"patch {patch.id!r} is not for version {version}: {found.reason}",
            remedy="leave it out, or plan for another version",
        )
    return found


def _check_unchanged(changing: Sequence[Patch]) -> None:
    if changing:
        names = ", ".join(repr(patch.id) for patch in changing)
        raise PatchError(
            f"source patches are forbidden here, and {names} would change {changing[0].package[0]}",
            remedy="leave them out, or plan for a version that does not need them",
        )


def named_patches(offered: Sequence[Patch], wanted: Sequence[str]) -> tuple[Patch, ...]:
    """The patches that ``wanted`` names, by id or set, with those that they require, in order, for all versions.

    Raises SpecError for an unknown name (with the nearest), ConflictError for two patches of one id, and PatchError for
    one that its author has got wrong.
    """
    by_id = _by_id(offered)
    found = in_order(_closed(_named(by_id, wanted), by_id))
    for patch in found:
        check_sound(patch)
    return found


def check_overlaps(patches: Sequence[Patch]) -> None:
    """PatchError for two patches that name one place and of which neither builds on the other.

    By their texts alone, so that a plan can be refused; the node looks at the real file again.
    """
    by_id = {patch.id: patch for patch in patches}
    for index, patch in enumerate(patches):
        for other in patches[:index]:
            if other.id in closure(patch, by_id) or patch.id in closure(other, by_id):
                continue
            for mine in patch.edits:
                for theirs in other.edits:
                    if file_of(patch, mine) == file_of(other, theirs) and _meet(mine, theirs):
                        raise PatchError(
                            f"patches {other.id!r} and {patch.id!r} change the same place of {file_of(patch, mine)}",
                            remedy="ask for one of them, or let one require the other and build on it",
                        )


def _by_id(offered: Sequence[Patch]) -> dict[str, Patch]:
    found: dict[str, Patch] = {}
    for patch in offered:
        if found.setdefault(patch.id, patch) != patch:
            raise ConflictError(
                f"two different patches are called {patch.id!r}", remedy="disable one of the plugins that offer them"
            )
    return found


def _named(by_id: dict[str, Patch], wanted: Sequence[str]) -> list[Patch]:
    named: dict[str, Patch] = {}
    for name in wanted:
        members = [patch for patch in by_id.values() if name == patch.id or name in patch.sets]
        if not members:
            known = sorted({*by_id, *(each for patch in by_id.values() for each in patch.sets)})
            near = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise SpecError(
                f"there is no patch or set {name!r}", remedy=f"{hint}there are {', '.join(known) or 'none'}"
            )
        named.update({patch.id: patch for patch in members})
    return list(named.values())


def _closed(chosen: list[Patch], by_id: dict[str, Patch]) -> list[Patch]:
    names = {name for patch in chosen for name in closure(patch, by_id)}
    return [patch for patch in by_id.values() if patch.id in names]


def _without_absent(patches: Sequence[Patch]) -> list[Patch]:
    """Patches in their order that require only what is there; one that is left out takes along what requires it."""
    kept: dict[str, Patch] = {}
    for patch in patches:
        absent = [name for name in patch.requires if name not in kept]
        if absent and patch.required:
            raise PatchError(f"patch {patch.id!r} requires {absent[0]!r}, which is not for this version")
        if not absent:
            kept[patch.id] = patch
    return list(kept.values())


def _left_out(patch: Patch, why: str) -> str:
    return f"the optional patch {patch.id!r} is left out: {why}"


def _meet(mine: Edit, theirs: Edit) -> bool:
    inside = mine.scope == theirs.scope or not mine.scope or not theirs.scope
    nested = mine.scope.startswith(f"{theirs.scope}.") or theirs.scope.startswith(f"{mine.scope}.")
    if not (inside or nested):
        return False
    first, second = _plain(mine), _plain(theirs)
    return bool(first and second) and (first in second or second in first)


def _plain(edit: Edit) -> str:
    """The anchor without indentation, and for statements without comments: what can be compared."""
    text = edit.anchor
    if edit.by == "statements":
        text = ast.unparse(parse(textwrap.dedent(text)))
    return "\n".join(line.strip() for line in text.strip().split("\n"))
