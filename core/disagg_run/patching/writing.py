"""Files of an installation changed together: everything is written beside them first, then they are replaced.

The order, so that a kill at any point leaves the installation whole:

1. the manifest with what is to be (``pending``) under a name that does not count yet, from which whoever comes after a
   kill knows what to remove; for each file ``FILE.disagg-run-new`` (the new text), ``FILE.disagg-run-orig`` (the
   backup) and ``FILE.disagg-run-old`` (the file itself under a second name), and the manifest of step 4; all synced;
2. the manifest with what is to be, renamed into place: from here on whoever comes next goes forward;
3. compiled caches removed, each new file renamed over the old;
4. what nobody needs any more is removed; the manifest without ``pending``, renamed into place.

Whatever needs room on the disk happens in 1, where a failure is undone by removing what was added. A failure in 2 or 3
is undone by renaming the old files back (``taking_back``). What follows 1 is done by two processes that watch each
other (``carrying``).
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import attrs

from disagg_run.errors import PatchError
from disagg_run.patching import carrying
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
    sha256,
)
from disagg_run.patching.new_files import beside, new_file, sync_directory, write_all, write_manifest
from disagg_run.patching.plain_files import has_digest, read_plain
from disagg_run.patching.replaceable import check_replaceable
from disagg_run.patching.replacing import PUT_BACK, cannot_write, go, is_settled, settled

_SECOND = 1_000_000_000


@attrs.frozen(kw_only=True)
class FileWrite:
    """One file of a change."""

    #: File, relative to the import root.
    file: str
    #: Its bytes afterwards.
    after: bytes
    #: Its bytes before any patch.
    original: bytes


class Staged:
    """A change of one import root, written beside its files and ready to go; the caller holds the root's lock."""

    def __init__(self, root: Path, writes: Iterable[FileWrite], manifest: Manifest) -> None:
        """Write what it takes. ``manifest.files`` has the digests of all files that are patched afterwards.

        Raises PatchError where something cannot be written, with everything as it was.
        """
        self.root = root
        self._added: list[Path] = []
        writes = tuple(writes)
        #: How many files it replaces.
        self.count = len(writes)
        old = read_manifest(root)
        files = dict(manifest.files)
        for write in writes:
            files.setdefault(write.file, _back_to_original(root, write, old))
        pending = attrs.evolve(manifest, files=files)
        #: The manifest that it ends with.
        self.after = settled(pending)
        try:
            write_manifest(root, BEGUN, attrs.evolve(old, pending=pending), self._added)
            sync_directory(root)
            if old.files or old.applied:
                _keep(root / MANIFEST, self._added, ours=True)
            for write in writes:
                _prepare(root / write.file, write, files[write.file], self._added)
            write_manifest(root, NEXT, self.after, self._added)
        except BaseException as error:  # Ctrl-C too must leave nothing half-written; it goes on below
            self.undo()
            if isinstance(error, OSError):
                raise cannot_write(error, root) from None
            raise

    def undo(self) -> None:
        """Remove what was written, last what says what it is."""
        for path in reversed(self._added):
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)


def commit(changes: Iterable[tuple[Path, Iterable[FileWrite], Manifest]], locks: Sequence[int]) -> None:
    """Make changes in several import roots, whose ``locks`` the caller holds: all are written before the first goes.

    Raises PatchError where something cannot be written or replaced, with everything as it was.
    """
    planned = [(root, tuple(writes), manifest) for root, writes, manifest in changes]
    for root, writes, _ in planned:
        check_replaceable(root, [write.file for write in writes])
    staged: list[Staged] = []
    try:
        for root, writes, manifest in planned:
            staged.append(Staged(root, writes, manifest))
    except BaseException:  # Ctrl-C too: nothing has gone yet, so all that was staged is taken back
        for each in staged:
            each.undo()
        raise
    roots = [each.root for each in staged]
    if sum(each.count for each in staged) > 1:
        carrying.carry(roots, locks)
    else:
        go(roots)  # one rename is whole by itself
    for each in staged:
        # The one who carried it to the end may have been killed before it could say that it took the change back.
        if not is_settled(each.root, each.after):
            raise PatchError(f"cannot patch {each.root}: a file could not be replaced", remedy=f"{PUT_BACK}; run again")


def forget(root: Path, manifest: Manifest) -> None:
    """Drop manifest and backups of an installation whose files somebody has replaced by unpatched ones."""
    try:
        for name in manifest.files:
            beside(root / name, BACKUP_SUFFIX).unlink(missing_ok=True)
        (root / MANIFEST).unlink(missing_ok=True)
    except OSError as error:
        raise cannot_write(error, root) from None


def backup_of(path: Path, file: PatchedFile) -> bytes:
    """The unpatched bytes of a patched file; PatchError where its backup is gone or is another."""
    backup = beside(path, BACKUP_SUFFIX)
    try:
        data = read_plain(backup)
    except OSError:
        raise PatchError(f"the backup {backup} is gone", remedy="reinstall the package") from None
    if sha256(data) != file.original:
        raise PatchError(f"the backup {backup} is not the original of {path}", remedy="reinstall the package")
    return data


def _back_to_original(root: Path, write: FileWrite, old: Manifest) -> PatchedFile:
    known = old.files.get(write.file)
    moment = known.mtime_ns if known else os.stat(root / write.file).st_mtime_ns
    return PatchedFile(original=sha256(write.original), current=sha256(write.after), mtime_ns=moment)


def _prepare(path: Path, write: FileWrite, file: PatchedFile, added: list[Path]) -> None:
    status = os.stat(path)
    _keep(path, added)
    if file.original == file.current:
        moment = file.mtime_ns
    else:
        # A compiled form is tied to its source's size and whole seconds: another second makes it stale.
        moment = max(time.time_ns(), (max(status.st_mtime_ns, file.mtime_ns) // _SECOND + 1) * _SECOND)
        # One that was left by a killed run may be half a file, or another release's.
        if not has_digest(beside(path, BACKUP_SUFFIX), file.original):
            _write(beside(path, BACKUP_SUFFIX), write.original, status, file.mtime_ns, added)
    _write(beside(path, NEW_SUFFIX), write.after, status, moment, added)


def _keep(path: Path, added: list[Path], *, ours: bool = False) -> None:
    """A second name for a file, under which it can come back as it is; a copy where the file system has no links.

    ``ours``: no file of the package, so that a copy may belong to whoever makes it: users may not link what is root's.
    """
    old = beside(path, OLD_SUFFIX)
    old.unlink(missing_ok=True)
    added.append(old)
    try:
        os.link(path, old)
    except OSError:
        status = os.stat(path)
        _write(old, read_plain(path), status, status.st_mtime_ns, added, ours=ours)


def _write(
    path: Path, data: bytes, like: os.stat_result, time_ns: int, added: list[Path], *, ours: bool = False
) -> None:
    """A new file as it shall be, on the disk before it counts.

    Mode and time are those given, the owner that of ``like`` unless the file is ``ours``.
    """
    path.unlink(missing_ok=True)
    added.append(path)
    with new_file(path) as handle:
        write_all(handle, data)
        if not ours:
            _keep_owner(handle, like, path)
        os.fchmod(handle, stat.S_IMODE(like.st_mode))
        os.utime(handle, ns=(time_ns, time_ns))
        os.fsync(handle)


def _keep_owner(handle: int, like: os.stat_result, path: Path) -> None:
    mine = os.fstat(handle)
    if (mine.st_uid, mine.st_gid) == (like.st_uid, like.st_gid):
        return
    try:
        os.fchown(handle, like.st_uid, like.st_gid)
    except PermissionError:
        raise PatchError(
            f"cannot patch {path.parent}: its files would no longer belong to user {like.st_uid}, group {like.st_gid}",
            remedy="nothing was changed; patch as their owner",
        ) from None
