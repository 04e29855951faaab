"""A change taken back before it is made: what was staged goes, and what was replaced already comes back."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from disagg_run.errors import PatchError
from disagg_run.patching.compiled import remove_caches
from disagg_run.patching.manifest import (
    BACKUP_SUFFIX,
    BEGUN,
    MANIFEST,
    NEW_SUFFIX,
    NEXT,
    OLD_SUFFIX,
    Manifest,
    PatchedFile,
    read_manifest,
)
from disagg_run.patching.new_files import beside, sync_directory, write_manifest
from disagg_run.patching.plain_files import has_digest


def at_rest(root: Path) -> bool:
    """Whether no change of ``root`` is under way, nor has a killed process left anything of one."""
    return read_manifest(root).pending is None and not os.path.lexists(root / BEGUN)


def before_of(name: str, file: PatchedFile, manifest: Manifest) -> str:
    """The digest that a file of a change under way had before it."""
    return manifest.files[name].current if name in manifest.files else file.original


def take_back(roots: Iterable[Path]) -> None:
    """Make the files of ``roots`` what they were before the change that is under way there; the caller has the locks.

    A file that somebody else has changed before we replaced it stays as it is. The order is such that whoever finishes
    this after a kill cannot put one root forward and the other back: first goes what leads forward, everywhere.
    Raises OSError, or PatchError where somebody else changed what we had replaced, or what a file was is lost.
    """
    roots = tuple(roots)
    under_way = {root: manifest for root in roots if (manifest := read_manifest(root)).pending is not None}
    for root, manifest in under_way.items():
        _check_ours(root, manifest)
    for root, manifest in under_way.items():
        for name in _pending(manifest):
            beside(root / name, NEW_SUFFIX).unlink(missing_ok=True)
    for root in roots:
        if root not in under_way:
            discard(root)
    for root, manifest in under_way.items():
        for name, file in _pending(manifest).items():
            _back(root / name, before_of(name, file, manifest), file.current)
        _drop_beside(root, _pending(manifest), manifest)
        _old_manifest(root, manifest)


def discard(root: Path) -> None:
    """Remove what is staged in ``root`` and did not go, also where a killed process left it."""
    if not os.path.lexists(root / BEGUN):
        return
    begun = None
    with contextlib.suppress(PatchError):  # half of it: then it is all that was written
        begun = read_manifest(root, BEGUN).pending
    _drop_beside(root, begun.files if begun is not None else {}, read_manifest(root))
    (root / BEGUN).unlink(missing_ok=True)  # last: as long as it is there, it says what else may be


def _pending(manifest: Manifest) -> Mapping[str, PatchedFile]:
    return manifest.pending.files if manifest.pending is not None else {}


def _check_ours(root: Path, manifest: Manifest) -> None:
    for name, file in _pending(manifest).items():
        path = root / name
        known = (before_of(name, file, manifest), file.current)
        if not os.path.lexists(beside(path, NEW_SUFFIX)) and not any(has_digest(path, digest) for digest in known):
            raise PatchError(
                f"{path} was changed by somebody else after disagg-run had begun to",
                remedy=f"reinstall the package, then remove {root / MANIFEST}",
            )


def _drop_beside(root: Path, names: Iterable[str], manifest: Manifest) -> None:
    """Remove all that was written for a change, except backups that ``manifest`` needs; its own record stays."""
    for name in names:
        path = root / name
        beside(path, NEW_SUFFIX).unlink(missing_ok=True)
        beside(path, OLD_SUFFIX).unlink(missing_ok=True)
        if name not in manifest.files:
            beside(path, BACKUP_SUFFIX).unlink(missing_ok=True)
    (root / NEXT).unlink(missing_ok=True)
    if manifest.pending is None:
        beside(root / MANIFEST, OLD_SUFFIX).unlink(missing_ok=True)


def _back(path: Path, before: str, after: str) -> None:
    if before == after or not has_digest(path, after):
        return
    for suffix in (OLD_SUFFIX, BACKUP_SUFFIX):
        kept = beside(path, suffix)
        if has_digest(kept, before):
            remove_caches(path)
            os.replace(kept, path)
            sync_directory(path.parent)
            return
    raise PatchError(f"what {path} was before the change is lost", remedy="reinstall the package")


def _old_manifest(root: Path, manifest: Manifest) -> None:
    if not manifest.files and not manifest.applied:
        (root / MANIFEST).unlink(missing_ok=True)
    else:
        old = beside(root / MANIFEST, OLD_SUFFIX)
        if not old.exists():
            write_manifest(root, old.name, Manifest(files=manifest.files, applied=manifest.applied), [])
        os.replace(old, root / MANIFEST)
    beside(root / MANIFEST, OLD_SUFFIX).unlink(missing_ok=True)
    sync_directory(root)
