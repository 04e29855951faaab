"""Files of an installation replaced by what was written beside them, and the record of that brought up to date."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

import attrs

from disagg_run.errors import PatchError
from disagg_run.patching.manifest import (
    BACKUP_SUFFIX,
    MANIFEST,
    NEW_SUFFIX,
    NEXT,
    Manifest,
    read_manifest,
    sha256,
)
from disagg_run.patching.new_files import write_manifest

#: The manifest that says what is to be, before it counts.
BEGUN = MANIFEST + NEW_SUFFIX


def go(roots: Iterable[Path]) -> None:
    """Replace what is staged in ``roots``, or the rest of it where somebody was killed over it.

    Raises PatchError where that could not be begun (nothing is changed) or not be ended.
    """
    roots = tuple(roots)
    for number, root in enumerate(roots):
        try:
            if (root / BEGUN).exists():
                os.replace(root / BEGUN, root / MANIFEST)
        except OSError as error:
            if number == 0:
                discard(roots)
            raise cannot_write(error, root) from None
        sync_directory(root)
    for root in roots:
        finish(root)


def discard(roots: Iterable[Path]) -> None:
    """Remove what is staged in ``roots`` and did not go."""
    for root in roots:
        begun = read_manifest(root, BEGUN).pending
        old = read_manifest(root)
        for name in begun.files if begun is not None else ():
            path = root / name
            path.with_name(path.name + NEW_SUFFIX).unlink(missing_ok=True)
            if name not in old.files:
                path.with_name(path.name + BACKUP_SUFFIX).unlink(missing_ok=True)
        for each in (BEGUN, NEXT):
            (root / each).unlink(missing_ok=True)


def finish(root: Path) -> bool:
    """Carry a change that is under way to its end; whether there was one. The caller holds the lock of the import root.

    Raises PatchError where a file is neither the old nor the new one, or the disk refuses.
    """
    manifest = read_manifest(root)
    if manifest.pending is None:
        return False
    pending = manifest.pending
    try:
        for name, file in pending.files.items():
            before = manifest.files[name].current if name in manifest.files else file.original
            _forward(root / name, before, file.current)
        _settle(root, pending)
    except OSError as error:
        raise cannot_write(error, root, "the change is begun and not finished: mend that and run again") from None
    return True


def _forward(path: Path, before: str, after: str) -> None:
    new = path.with_name(path.name + NEW_SUFFIX)
    current = sha256(path.read_bytes()) if path.exists() else ""
    if current == after:
        new.unlink(missing_ok=True)
        return
    if current != before or not new.exists() or sha256(new.read_bytes()) != after:
        raise PatchError(
            f"{path} was changed while a patch was being applied",
            remedy=f"reinstall the package, then remove {MANIFEST} beside it",
        )
    remove_caches(path)
    os.replace(new, path)
    sync_directory(path.parent)


def settled(pending: Manifest) -> Manifest:
    """The manifest once a change is made: without the files that went back."""
    return attrs.evolve(
        pending, files={name: file for name, file in pending.files.items() if file.current != file.original}
    )


def _settle(root: Path, pending: Manifest) -> None:
    """The change is made: backups go that nobody needs, and the manifest says so."""
    after = settled(pending)
    for name in pending.files.keys() - after.files.keys():
        path = root / name
        path.with_name(path.name + BACKUP_SUFFIX).unlink(missing_ok=True)
    if after.files or after.applied:
        # Written in advance by ``commit``, so that a full disk cannot stop us here.
        if not (root / NEXT).exists() or (root / NEXT).read_bytes() != after.to_json().encode():
            write_manifest(root, NEXT, after, [])
        os.replace(root / NEXT, root / MANIFEST)
    else:
        for name in (NEXT, MANIFEST):  # in this order: as long as there is a manifest, it says what is to be finished
            (root / name).unlink(missing_ok=True)
    sync_directory(root)


def remove_caches(path: Path) -> None:
    """Remove the compiled forms of a source file, beside it and under ``PYTHONPYCACHEPREFIX``.

    A cache whose source has another time is stale by itself; one that is trusted unchecked is not, so all go.
    """
    places = [path.parent / "__pycache__"]
    prefix = os.environ.get("PYTHONPYCACHEPREFIX")
    if prefix:
        places.append(Path(prefix, *path.parent.parts[1:]))
    for place in places:
        for cache in place.glob(f"{_literal(path.stem)}.*.pyc"):
            cache.unlink(missing_ok=True)


def cannot_write(error: OSError, root: Path, remedy: str = "") -> PatchError:
    """One line for what the disk said."""
    where = str(error.filename2 or error.filename or root)
    return PatchError(
        f"cannot patch {root}: {os.strerror(error.errno).lower() if error.errno else error} ({where})",
        remedy=remedy or "nothing was changed; patch as the installation's owner, where its file system can be written",
    )


def sync_directory(path: Path) -> None:
    """Have the names in a directory on the disk."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # Some file systems cannot; then a power cut may show the old names, which is a state like any other.
        with contextlib.suppress(OSError):
            os.fsync(handle)
    finally:
        os.close(handle)


def _literal(name: str) -> str:
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in name)
