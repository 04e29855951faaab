"""Files of an installation replaced by what was written beside them, and the record of that brought up to date."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

import attrs

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
    read_manifest,
)
from disagg_run.patching.new_files import beside, sync_directory, write_manifest
from disagg_run.patching.plain_files import digest_of, has_digest, read_plain
from disagg_run.patching.taking_back import before_of, discard, take_back

#: What became of a change that could not be carried out.
PUT_BACK = "nothing is changed, what had been replaced was put back"


def go(roots: Iterable[Path]) -> None:
    """Replace what is staged in ``roots``, or the rest of it where somebody was killed over it: all of it or nothing.

    Raises PatchError where that cannot be done: what had been replaced is put back then, or the error says that it
    could not be.
    """
    roots = tuple(roots)
    try:
        for root in roots:
            if (root / BEGUN).exists():
                os.replace(root / BEGUN, root / MANIFEST)
                sync_directory(root)
        for root in roots:
            _forward(root)
    except (OSError, PatchError) as error:
        _put_back(roots, error)
        if isinstance(error, PatchError):
            raise
        raise cannot_write(error, roots[0], f"{PUT_BACK}; mend that and run again") from None
    for root in roots:
        _settle(root)


def recover(roots: Iterable[Path]) -> None:
    """Carry what a killed process had begun in ``roots`` to its end, or back where that cannot be; remove its strays.

    The caller holds the locks. Raises PatchError where it can neither be ended nor taken back.
    """
    roots = tuple(roots)
    begun = [root for root in roots if read_manifest(root).pending is not None]
    try:
        if begun and any(os.path.lexists(root / BEGUN) for root in roots):
            raise PatchError("it was not begun everywhere")  # so nothing is replaced yet, and all can stay old
        for root in begun:
            _forward(root)
    except (OSError, PatchError) as error:
        _put_back(begun, error)
    else:
        for root in begun:
            _settle(root)
    for root in roots:
        try:
            discard(root)
        except OSError as error:
            raise cannot_write(error, root) from None


def _put_back(roots: Iterable[Path], because: OSError | PatchError) -> None:
    """Take a change back that cannot go on; PatchError where that cannot be done either."""
    try:
        take_back(roots)
    except (OSError, PatchError) as error:
        reason = because.message if isinstance(because, PatchError) else _reason(because)
        again = error.message if isinstance(error, PatchError) else _reason(error)
        remedy = error.remedy if isinstance(error, PatchError) else ""
        raise PatchError(
            f"a change was begun and can neither be finished ({reason}) nor taken back ({again})",
            remedy=remedy or "mend that, then apply or revert again, which does the one or the other",
        ) from None


def _forward(root: Path) -> None:
    """Replace the files of the change that is under way in ``root``, those that are not yet."""
    manifest = read_manifest(root)
    if manifest.pending is None:
        return
    for name, file in manifest.pending.files.items():
        _replace(root / name, before_of(name, file, manifest), file.current)


def _replace(path: Path, before: str, after: str) -> None:
    new = beside(path, NEW_SUFFIX)
    current = digest_of(path)
    if current == after:
        new.unlink(missing_ok=True)
        return
    if current != before:
        raise PatchError(
            f"{path} was changed by somebody else while it was being patched", remedy=f"{PUT_BACK}; run again"
        )
    if not has_digest(new, after):  # as where somebody was killed over putting it back
        raise PatchError(f"{path} could not be replaced", remedy=f"{PUT_BACK}; run again")
    remove_caches(path)
    os.replace(new, path)
    sync_directory(path.parent)


def settled(pending: Manifest) -> Manifest:
    """The manifest once a change is made: without the files that went back."""
    return attrs.evolve(
        pending, files={name: file for name, file in pending.files.items() if file.current != file.original}
    )


def _settle(root: Path) -> None:
    """The change is made: what nobody needs any more goes, and the manifest says so."""
    pending = read_manifest(root).pending
    if pending is None:
        return
    after = settled(pending)
    try:
        for name in pending.files:
            beside(root / name, OLD_SUFFIX).unlink(missing_ok=True)
            if name not in after.files:
                beside(root / name, BACKUP_SUFFIX).unlink(missing_ok=True)
        beside(root / MANIFEST, OLD_SUFFIX).unlink(missing_ok=True)
        if after.files or after.applied:
            # Written in advance by ``commit``, so that a full disk cannot stop us here.
            if not _says(root / NEXT, after):
                write_manifest(root, NEXT, after, [])
            os.replace(root / NEXT, root / MANIFEST)
        else:
            for name in (NEXT, MANIFEST):  # in this order: while there is a manifest, it says what is to be finished
                (root / name).unlink(missing_ok=True)
    except OSError as error:
        remedy = "the files are changed and the record of it is not finished: mend that and run again"
        raise cannot_write(error, root, remedy) from None
    sync_directory(root)


def is_settled(root: Path, after: Manifest) -> bool:
    """Whether a change of ``root`` that ends with the manifest ``after`` is made."""
    if after.files or after.applied:
        return _says(root / MANIFEST, after)
    return not os.path.lexists(root / MANIFEST)


def _says(path: Path, manifest: Manifest) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return read_plain(path) == manifest.to_json().encode()
    return False


def cannot_write(error: OSError, root: Path, remedy: str = "") -> PatchError:
    """One line for what the disk said."""
    return PatchError(
        f"cannot patch {root}: {_reason(error, root)}",
        remedy=remedy or "nothing was changed; patch as the installation's owner, where its file system can be written",
    )


def _reason(error: OSError, root: Path | str = "") -> str:
    where = str(error.filename2 or error.filename or root)
    return f"{os.strerror(error.errno).lower() if error.errno else error}" + (f" ({where})" if where else "")
