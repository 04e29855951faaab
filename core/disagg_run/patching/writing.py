"""Files of an installation changed together: everything is written beside them first, then they are replaced.

The order, so that a kill at any point leaves each file whole and the rest to be finished:

1. for each file ``FILE.disagg-run-new`` (the new text) and ``FILE.disagg-run-orig`` (the backup), and the manifest of
   step 4, all synced to disk;
2. the manifest with what is to be (``pending``), renamed into place: from here on whoever comes next goes forward;
3. compiled caches removed, each new file renamed over the old;
4. the manifest without ``pending``, renamed into place; backups that nobody needs any more are removed.

Whatever needs room on the disk happens in 1 and 2, where a failure is undone by removing what was added.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import attrs

from disagg_run.errors import PatchError
from disagg_run.patching.manifest import (
    BACKUP_SUFFIX,
    MANIFEST,
    NEW_SUFFIX,
    NEXT,
    Manifest,
    PatchedFile,
    read_manifest,
    sha256,
)

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
        old = read_manifest(root)
        files = dict(manifest.files)
        for write in writes:
            files.setdefault(write.file, _back_to_original(root, write, old))
        pending = attrs.evolve(manifest, files=files)
        try:
            for write in writes:
                _prepare(root / write.file, write, files[write.file], self._added)
            _write_manifest(root, NEXT, _settled(pending), self._added)
            _write_manifest(root, MANIFEST + NEW_SUFFIX, attrs.evolve(old, pending=pending), self._added)
        except BaseException as error:  # Ctrl-C too must leave nothing half-written; it goes on below
            self.undo()
            if isinstance(error, OSError):
                raise cannot_write(error, root) from None
            raise

    def undo(self) -> None:
        """Remove what was written."""
        for path in self._added:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)

    def go(self) -> None:
        """Replace the files; PatchError where that could not be begun (nothing is changed) or not be ended."""
        try:
            os.replace(self.root / (MANIFEST + NEW_SUFFIX), self.root / MANIFEST)
        except OSError as error:
            self.undo()
            raise cannot_write(error, self.root) from None
        _sync_directory(self.root)
        finish(self.root)


def commit(changes: Iterable[tuple[Path, Iterable[FileWrite], Manifest]]) -> None:
    """Make changes in several import roots, whose locks the caller holds: all are written before the first goes.

    Raises PatchError where something cannot be written, with everything as it was.
    """
    staged: list[Staged] = []
    try:
        for root, writes, manifest in changes:
            staged.append(Staged(root, writes, manifest))
    except BaseException:  # Ctrl-C too: nothing has gone yet, so all that was staged is taken back
        for each in staged:
            each.undo()
        raise
    for each in staged:
        each.go()


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
    _sync_directory(path.parent)


def _settled(pending: Manifest) -> Manifest:
    """The manifest once a change is made: without the files that went back."""
    return attrs.evolve(
        pending, files={name: file for name, file in pending.files.items() if file.current != file.original}
    )


def _settle(root: Path, pending: Manifest) -> None:
    """The change is made: backups go that nobody needs, and the manifest says so."""
    settled = _settled(pending)
    for name in pending.files.keys() - settled.files.keys():
        path = root / name
        path.with_name(path.name + BACKUP_SUFFIX).unlink(missing_ok=True)
    if settled.files or settled.applied:
        # Written in advance by ``commit``, so that a full disk cannot stop us here.
        if not (root / NEXT).exists() or (root / NEXT).read_bytes() != settled.to_json().encode():
            _write_manifest(root, NEXT, settled, [])
        os.replace(root / NEXT, root / MANIFEST)
    else:
        (root / MANIFEST).unlink(missing_ok=True)
        (root / NEXT).unlink(missing_ok=True)
    _sync_directory(root)


def forget(root: Path, manifest: Manifest) -> None:
    """Drop manifest and backups of an installation whose files somebody has replaced by unpatched ones."""
    try:
        for name in manifest.files:
            path = root / name
            path.with_name(path.name + BACKUP_SUFFIX).unlink(missing_ok=True)
        (root / MANIFEST).unlink(missing_ok=True)
    except OSError as error:
        raise cannot_write(error, root) from None


def backup_of(path: Path, file: PatchedFile) -> bytes:
    """The unpatched bytes of a patched file; PatchError where its backup is gone or is another."""
    backup = path.with_name(path.name + BACKUP_SUFFIX)
    try:
        data = backup.read_bytes()
    except OSError as error:
        raise PatchError(f"cannot read the backup {backup}: {error.strerror}", remedy="reinstall the package") from None
    if sha256(data) != file.original:
        raise PatchError(f"the backup {backup} is not the original of {path}", remedy="reinstall the package")
    return data


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


def _back_to_original(root: Path, write: FileWrite, old: Manifest) -> PatchedFile:
    known = old.files.get(write.file)
    moment = known.mtime_ns if known else os.stat(root / write.file).st_mtime_ns
    return PatchedFile(original=sha256(write.original), current=sha256(write.after), mtime_ns=moment)


def _prepare(path: Path, write: FileWrite, file: PatchedFile, added: list[Path]) -> None:
    if path.is_symlink():
        raise PatchError(
            f"{path} is a link to {os.readlink(path)}", remedy="patch the installation in which the file itself lies"
        )
    status = os.stat(path)
    backup = path.with_name(path.name + BACKUP_SUFFIX)
    if file.original == file.current:
        moment = file.mtime_ns
    else:
        # A compiled form is tied to its source's size and whole seconds: another second makes it stale.
        moment = max(time.time_ns(), (max(status.st_mtime_ns, file.mtime_ns) // _SECOND + 1) * _SECOND)
        # One that was left by a killed run may be half a file, or another release's.
        if not backup.exists() or sha256(backup.read_bytes()) != file.original:
            _write(backup, write.original, status, file.mtime_ns, added)
    _write(path.with_name(path.name + NEW_SUFFIX), write.after, status, moment, added)


def _write(path: Path, data: bytes, like: os.stat_result, time_ns: int, added: list[Path]) -> None:
    """A new file with the mode, owner and time that it shall have, on the disk before it counts."""
    path.unlink(missing_ok=True)
    added.append(path)
    with _new_file(path) as handle:
        _write_all(handle, data)
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


def _write_manifest(root: Path, name: str, manifest: Manifest, added: list[Path]) -> None:
    path = root / name
    path.unlink(missing_ok=True)
    added.append(path)
    with _new_file(path) as handle:
        _write_all(handle, manifest.to_json().encode())
        os.fchmod(handle, 0o644)
        os.fsync(handle)


@contextlib.contextmanager
def _new_file(path: Path) -> Iterator[int]:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        yield handle
    finally:
        os.close(handle)


def _write_all(handle: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(handle, view) :]


def _sync_directory(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # Some file systems cannot; then a power cut may show the old names, which is a state like any other.
        with contextlib.suppress(OSError):
            os.fsync(handle)
    finally:
        os.close(handle)


def _literal(name: str) -> str:
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in name)
