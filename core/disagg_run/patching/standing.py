"""Patches that stand in an installation which has no record of them, recognised also where others build on them.

A patch that another one builds on is no longer there letter by letter. So they are taken off in memory, the last first,
and what is left must give the same texts when they are made again: then it is known what stands there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs

from disagg_run.errors import PatchError
from disagg_run.patching.editing import Edited, Fits, carry_out
from disagg_run.patching.matching import NoMatch, locate, replacement_text, source_text
from disagg_run.patching.ordering import file_of
from disagg_run.patching.texts import Unreadable
from disagg_run.records import Patch

Texts = Mapping[str, str | Unreadable | None]


def carry_out_anew(texts: Texts, patches: Sequence[Patch]) -> Edited:
    """``carry_out``, where some of ``patches`` may stand in ``texts`` already: they are said to be present.

    Raises PatchError as ``carry_out``.
    """
    bare, standing = _taken_off(texts, patches)
    edited = carry_out(bare, patches)
    verdicts = {
        name: attrs.evolve(verdict, present=True) if name in standing and isinstance(verdict, Fits) else verdict
        for name, verdict in edited.verdicts.items()
    }
    return Edited(edited.texts, verdicts)


def standing_in(texts: Texts, patches: Sequence[Patch]) -> tuple[str, ...]:
    """The ids of those of ``patches``, which stand in order, whose every edit stands in ``texts``."""
    together = _taken_off(texts, patches)[1]
    return tuple(patch.id for patch in patches if patch.id in together or _without(patch, texts) is not None)


def _taken_off(texts: Texts, patches: Sequence[Patch]) -> tuple[Texts, frozenset[str]]:
    """The texts without those of ``patches`` that stand there, and the ids of these."""
    bare = dict(texts)
    standing: list[Patch] = []
    for patch in reversed(patches):
        without = _without(patch, bare)
        if without is not None:
            bare = without
            standing.insert(0, patch)
    ids = frozenset(patch.id for patch in standing)
    if not standing:
        return texts, ids
    alone = [attrs.evolve(patch, requires=[name for name in patch.requires if name in ids]) for patch in standing]
    try:
        again = carry_out(bare, alone)
    except PatchError:
        return texts, frozenset()
    same = all(text == texts[name] for name, text in again.texts.items())
    fit = all(isinstance(verdict, Fits) for verdict in again.verdicts.values())
    return (bare, ids) if same and fit else (texts, frozenset())


def _without(patch: Patch, texts: Texts) -> dict[str, str | Unreadable | None] | None:
    """The texts as they were before the edits of ``patch``; None where they do not all stand there."""
    found = dict(texts)
    changed = False
    for edit in reversed(patch.edits):
        name = file_of(patch, edit)
        text = found.get(name)
        if text is None and edit.optional:
            continue
        if not isinstance(text, str):
            return None
        try:
            stands = locate(source_text(text), edit)
        except NoMatch:
            return None
        if not stands.present:
            return None
        place = stands.place
        back = replacement_text(attrs.evolve(edit, replacement=edit.anchor), place)
        found[name] = text[: place.start] + back + text[place.end :]
        changed = True
    return found if changed else None
