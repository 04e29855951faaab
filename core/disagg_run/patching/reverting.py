"""Patches taken back: in all import roots that are given, or in none."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import attrs

from disagg_run.errors import PatchError
from disagg_run.patching.editing import carry_out
from disagg_run.patching.ledger import ledger_line
from disagg_run.patching.locking import LOCK_TIMEOUT_S, locked_roots
from disagg_run.patching.manifest import Applied, Manifest, PatchedFile, read_manifest, sha256
from disagg_run.patching.ordering import files_of, in_order
from disagg_run.patching.reinstalled import is_outdated
from disagg_run.patching.replaceable import check_replaceable
from disagg_run.patching.replacing import recover
from disagg_run.patching.states import PatchState
from disagg_run.patching.taking_back import at_rest
from disagg_run.patching.writing import FileWrite, backup_of, commit, forget
from disagg_run.records import Patch

_NOTHING_LEFT = "its files were installed anew since, nothing is left to revert"


def revert_patches(
    roots: Iterable[Path], ids: Sequence[str] = (), *, lock_timeout_s: float = LOCK_TIMEOUT_S
) -> tuple[PatchState, ...]:
    """Take patches back in the given import roots, those named by ``ids`` or all; the files get their bytes back.

    All roots or none: where one cannot be changed, no other is. A change that a killed process left half done is
    finished first, or taken back where that cannot be. ``lock_timeout_s``: seconds to wait for another process.
    Raises PatchError for an id that is not applied (with the nearest), one that others require, and a file that was
    changed since or cannot be written.
    """
    roots = [root for root in sorted(set(roots)) if _concerned(root)]
    _check_ids(roots, ids)
    if all(map(at_rest, roots)):
        for root in roots:
            _check_replaceable(root, read_manifest(root), ids)  # before a lock file is made
    with locked_roots(roots, lock_timeout_s) as locks:
        recover(roots)
        manifests = {root: read_manifest(root) for root in roots}
        gone = {root: found for root, manifest in manifests.items() if (found := _gone(manifest, ids))}
        _check_required(manifests.values(), [each for found in gone.values() for each in found])
        outdated = [root for root in gone if is_outdated(root, manifests[root])]
        changes = [(root, *_change(root, manifests[root], gone[root])) for root in gone if root not in outdated]
        for root in gone:
            _check_replaceable(root, manifests[root], ids)
        for root in outdated:
            forget(root, manifests[root])
        commit(changes, locks)
    return tuple(
        _reverted(root, manifests[root], each, _NOTHING_LEFT if root in outdated else "")
        for root, found in gone.items()
        for each in found
    )


def _concerned(root: Path) -> bool:
    """Whether there is anything of ours in ``root``: patches, a change under way, or what a killed process left."""
    manifest = read_manifest(root)
    return bool(manifest.applied or manifest.files) or not at_rest(root)


def _check_replaceable(root: Path, manifest: Manifest, ids: Sequence[str]) -> None:
    names = {name for each in _gone(manifest, ids) for name in files_of(each.patch)}
    check_replaceable(root, sorted(names & manifest.files.keys()))


def _check_ids(roots: Sequence[Path], ids: Sequence[str]) -> None:
    known: list[str] = []
    for root in roots:
        manifest = read_manifest(root)
        known += [each.patch.id for each in (manifest.pending or manifest).applied + manifest.applied]
    for name in ids:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise PatchError(
                f"patch {name!r} is not applied here",
                remedy=f"{hint}applied are {', '.join(dict.fromkeys(known)) or 'none'}",
            )


def _gone(manifest: Manifest, ids: Sequence[str]) -> list[Applied]:
    return [each for each in manifest.applied if not ids or each.patch.id in ids]


def _check_required(manifests: Iterable[Manifest], gone: Sequence[Applied]) -> None:
    names = {each.patch.id for each in gone}
    for each in (each for manifest in manifests for each in manifest.applied if each not in gone):
        needed = names & set(each.patch.requires)
        if needed:
            raise PatchError(
                f"patch {sorted(needed)[0]!r} cannot be reverted alone: {each.patch.id!r} requires it",
                remedy=f"revert {each.patch.id!r} too",
            )


def _change(root: Path, manifest: Manifest, gone: Sequence[Applied]) -> tuple[list[FileWrite], Manifest]:
    """What has to be written so that ``gone`` are not there, and the manifest afterwards."""
    kept = [each for each in manifest.applied if each not in gone]
    originals = {name: backup_of(root / name, file) for name, file in manifest.files.items()}
    texts = _texts(originals, kept)
    writes: list[FileWrite] = []
    files: dict[str, PatchedFile] = {}
    for name, original in originals.items():
        data = texts.get(name, original)
        if sha256(data) != manifest.files[name].current:
            writes.append(FileWrite(file=name, after=data, original=original))
        if data != original:
            files[name] = PatchedFile(
                original=sha256(original), current=sha256(data), mtime_ns=manifest.files[name].mtime_ns
            )
    return writes, Manifest(files=files, applied=tuple(kept))


def _texts(originals: Mapping[str, bytes], kept: Sequence[Applied]) -> dict[str, bytes]:
    if not kept:
        return {}
    ids = {each.patch.id for each in kept}
    patches: list[Patch] = [
        attrs.evolve(each.patch, requires=tuple(name for name in each.patch.requires if name in ids)) for each in kept
    ]
    texts = carry_out({name: data.decode() for name, data in originals.items()}, in_order(patches)).texts
    return {name: text.encode() for name, text in texts.items()}


def _reverted(root: Path, manifest: Manifest, each: Applied, detail: str) -> PatchState:
    lines = [ledger_line(root, name, manifest, each) for name in files_of(each.patch) if name in manifest.files]
    return PatchState(
        id=each.patch.id,
        state="reverted",
        package=each.package,
        version=each.version,
        detail=detail,
        required=each.patch.required,
        files=[attrs.evolve(line, before=line.after, after=line.before) for line in lines],
        why=each.patch.why,
        upstream=each.patch.upstream,
        waiver=each.waiver,
    )
