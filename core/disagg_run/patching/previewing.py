"""What patches make of the unpatched files of an installation, for people to read; nothing is written."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import attrs

from disagg_run.patching.candidates import Candidate, concerned
from disagg_run.patching.editing import Fits, carry_out
from disagg_run.patching.examining import decoded
from disagg_run.patching.locating import Site
from disagg_run.patching.manifest import read_manifest
from disagg_run.patching.ordering import files_of
from disagg_run.patching.states import PatchState
from disagg_run.patching.writing import backup_of
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
    originals = {name: _original(root, name) for patch in patches for name in files_of(patch)}
    edited = carry_out(originals, patches)
    for name, verdict in edited.verdicts.items():
        if not isinstance(verdict, Fits):
            remarks.append(f"{name}: does not match, {verdict.file}: {verdict.reason}")
        elif verdict.present:
            remarks.append(f"{name}: already applied, it stands there as installed")
    return [
        FileText(file=name, before=originals[name] or "", after=text)
        for name, text in edited.texts.items()
        if text != originals[name]
    ]


def _original(root: Path, name: str) -> str | None:
    known = read_manifest(root).files.get(name)
    if known is not None:
        return decoded(backup_of(root / name, known))
    try:
        return decoded((root / name).read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
