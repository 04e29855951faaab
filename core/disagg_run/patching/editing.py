"""Patches carried out in memory: all edits on the texts of one installation, before anything is written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs

from disagg_run.errors import PatchError
from disagg_run.patching.matching import Altered, NoMatch, Place, locate, replacement_text, source_text, syntax_problem
from disagg_run.patching.ordering import closure, file_of
from disagg_run.patching.texts import Unreadable
from disagg_run.records import Edit, Patch


@attrs.frozen
class Fits:
    """All edits of the patch have their place."""

    #: Its files, in the order of its edits.
    files: tuple[str, ...]
    #: Whether every edit stood there already, so that nothing changes.
    present: bool


@attrs.frozen
class Unfit:
    """The patch has no place here."""

    file: str
    reason: str
    #: The file is not as any release has it.
    altered: bool = False


Verdict = Fits | Unfit


@attrs.frozen
class Edited:
    """What all patches together make of the files."""

    #: The texts afterwards, by file.
    texts: Mapping[str, str]
    #: What each patch found, by id.
    verdicts: Mapping[str, Verdict]


@attrs.define
class _File:
    original: str
    text: str
    #: What earlier patches wrote, as stretches of ``text`` with the patch's id.
    written: list[tuple[Place, str]] = attrs.field(factory=list)

    def copy(self) -> _File:
        return _File(self.original, self.text, list(self.written))


def carry_out(originals: Mapping[str, str | Unreadable | None], patches: Sequence[Patch]) -> Edited:
    """Make the edits of ``patches``, which stand in order, on ``originals`` (None = there is no such file).

    The texts of the result are those of the files that have one. A patch that does not fit leaves no trace, nor do
    those that require it. Raises PatchError for two patches that want one place and do not build on each other, whether
    or not they are optional: their order would decide.
    """
    by_id = {patch.id: patch for patch in patches}
    files = {name: _File(text, text) for name, text in originals.items() if isinstance(text, str)}
    bad = {name: text.reason for name, text in originals.items() if isinstance(text, Unreadable)}
    verdicts: dict[str, Verdict] = {}
    for patch in patches:
        missing = [name for name in patch.requires if isinstance(verdicts.get(name), Unfit)]
        if missing:
            verdicts[patch.id] = Unfit(patch.file or file_of(patch, patch.edits[0]), f"it requires {missing[0]!r}")
            continue
        trial = {name: file.copy() for name, file in files.items()}
        verdict = _one(patch, trial, bad, by_id)
        verdicts[patch.id] = verdict
        if isinstance(verdict, Fits):
            files = trial
    return Edited({name: file.text for name, file in files.items()}, verdicts)


def _one(patch: Patch, files: dict[str, _File], bad: Mapping[str, str], by_id: Mapping[str, Patch]) -> Verdict:
    ours = closure(patch, by_id)
    touched: dict[str, None] = {}
    present: list[bool] = []
    name = patch.file
    for edit in patch.edits:
        name = file_of(patch, edit)
        if name in bad:
            return Unfit(name, bad[name], altered=True)
        if name not in files:
            if edit.optional:
                continue
            return Unfit(name, "there is no such file")
        try:
            present.append(_edit(patch, edit, name, files[name], ours))
        except NoMatch as error:
            return Unfit(name, str(error), altered=isinstance(error, Altered))
        touched[name] = None
    if not touched:
        return Unfit(name, "none of its files is there")
    if len(set(present)) > 1:
        return Unfit(name, "some of its edits stand there already and some do not")
    for name in touched:
        broken = _broken(patch, name, files[name])
        if broken:
            return Unfit(name, broken)
    return Fits(tuple(touched), present[0])


def _edit(patch: Patch, edit: Edit, name: str, file: _File, ours: frozenset[str]) -> bool:
    """Make one edit; whether it stood there already."""
    try:
        found = locate(source_text(file.text), edit)
    except NoMatch:
        _blame_overlap(patch, edit, name, file, ours)
        raise
    start, end = found.place.start, found.place.end
    for place, owner in file.written:
        if owner not in ours and place.start < end and start < place.end:
            raise _overlap(patch.id, owner, name)
    if found.present:
        file.written.append((found.place, patch.id))
        return True
    new = replacement_text(edit, found.place)
    shift = len(new) - (end - start)
    file.written = [(_moved(place, start, end, shift), owner) for place, owner in file.written]
    file.written.append((Place(start, start + len(new)), patch.id))
    file.text = file.text[:start] + new + file.text[end:]
    return False


def _moved(place: Place, start: int, end: int, shift: int) -> Place:
    """A stretch as it lies after the text from ``start`` to ``end`` has changed its length."""
    if place.end <= start:
        return place
    if place.start >= end:
        return Place(place.start + shift, place.end + shift)
    return Place(min(place.start, start), max(place.end, end) + shift)


def _blame_overlap(patch: Patch, edit: Edit, name: str, file: _File, ours: frozenset[str]) -> None:
    """PatchError where the edit would fit the unpatched file, so that an earlier patch took its place away."""
    others = sorted({owner for _, owner in file.written if owner not in ours})
    if not others:
        return
    try:
        locate(source_text(file.original), edit)
    except NoMatch:
        return
    raise _overlap(patch.id, ", ".join(others), name)


def _overlap(first: str, second: str, file: str) -> PatchError:
    return PatchError(
        f"patches {first!r} and {second!r} change the same place of {file}",
        remedy="name one of them, or let one require the other and build on it",
    )


def _broken(patch: Patch, name: str, file: _File) -> str:
    """Why the file cannot be patched, being no Python before; "" = it can. PatchError where the patch made it so."""
    problem = syntax_problem(file.text) if name.endswith(".py") and file.text != file.original else ""
    if not problem:
        return ""
    before = syntax_problem(file.original)
    if before:
        return f"it is no Python as it stands: {before}"
    raise PatchError(f"patch {patch.id!r} makes of {name} no Python: {problem}", remedy="the patch is wrong: report it")
