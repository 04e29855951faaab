"""What patches make of the unpatched files of an installation, for people to read; nothing is written."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import attrs

from disagg_run.patching.candidates import Candidate, concerned
from disagg_run.patching.editing import Fits
from disagg_run.patching.locating import Site
from disagg_run.patching.ordering import files_of
from disagg_run.patching.originals import original_bytes
from disagg_run.patching.reinstalled import manifest_in_force
from disagg_run.patching.standing import carry_out_anew
from disagg_run.patching.states import PatchState
from disagg_run.patching.texts import text_of
from disagg_run.records import Patch


@attrs.frozen(kw_only=True)
class FileText:
    """One file without and with the patches."""

    file: str
    before: str
    after: str


@attrs.frozen(kw_only=True)
class Preview:
    """The files that change, and one clause for each patch that changes none."""

    texts: tuple[FileText, ...]
    remarks: tuple[str, ...]


def preview(patches: Sequence[Patch], site: Site) -> Preview:
    """The texts that ``patches``, which stand in order, make of an installation that has no patches.

    Raises PatchError for patches that want one place and for backups that are gone.
    """
    candidates, remarks = [], []
    for patch in patches:
        found = concerned(patch, site)
        if isinstance(found, PatchState):
            remarks.append(f"{found.id}: {found.state}, {found.detail}")
        else:
            candidates.append(found)
    texts: list[FileText] = []
    for root in dict.fromkeys(each.root for each in candidates):
        texts += _of(root, [each for each in candidates if each.root == root], remarks)
    return Preview(texts=tuple(texts), remarks=tuple(remarks))


def _of(root: Path, candidates: Sequence[Candidate], remarks: list[str]) -> list[FileText]:
    ids = {each.patch.id for each in candidates}
    patches = [
        attrs.evolve(each.patch, requires=tuple(name for name in each.patch.requires if name in ids))
        for each in candidates
    ]
    manifest = manifest_in_force(root)
    names = dict.fromkeys(name for patch in patches for name in files_of(patch))
    originals = {name: text_of(original_bytes(root, name, manifest)) for name in names}
    edited = carry_out_anew(originals, patches)
    for name, verdict in edited.verdicts.items():
        if not isinstance(verdict, Fits):
            remarks.append(f"{name}: does not match, {verdict.file}: {verdict.reason}")
        elif verdict.present:
            remarks.append(f"{name}: already applied, it stands in the unpatched file")
    return [
        FileText(file=name, before=before, after=text)
        for name, text in edited.texts.items()
        if text != (before := str(originals[name]))
    ]
