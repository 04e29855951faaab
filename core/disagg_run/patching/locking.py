"""One writer at a time in an installation, also where many hosts share its file system."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from disagg_run.errors import PatchError
from disagg_run.patching.manifest import LOCK
from disagg_run.patching.plain_files import read_plain
from disagg_run.patching.replacing import cannot_write

#: Seconds that one process waits for another that patches the same installation.
LOCK_TIMEOUT_S = 120.0
#: Seconds between two tries.
_POLL_S = 0.05
#: What a file system says that has no locks (a Lustre mounted without them, some FUSE).
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP)


class StillHeld(PatchError):
    """A process that inherited the lock holds it on, and cannot be ended."""


@contextlib.contextmanager
def locked_roots(roots: Iterable[Path], timeout_s: float) -> Iterator[list[int]]:
    """Hold the locks of several import roots, each waited for ``timeout_s`` seconds; gives the file descriptors.

    Raises PatchError as ``locked``, and where a root cannot be written.
    """
    with contextlib.ExitStack() as stack:
        handles: list[int] = []
        for root in sorted(set(roots)):
            try:
                handle = stack.enter_context(locked(root / LOCK, timeout_s))
            except OSError as error:
                raise cannot_write(error, root) from None
            handles += [handle] if handle is not None else []
        yield handles


@contextlib.contextmanager
def locked(path: Path, timeout_s: float) -> Iterator[int | None]:
    """Hold the lock file ``path``; other holders are waited for ``timeout_s`` seconds.

    Gives the file descriptor by which it is held, which a child that inherits it holds too; None where none does.

    ``flock``, which Linux carries to the server on NFS, so that it works between hosts there, and which ends with its
    process. Where the file system has no locks, an exclusively created file ``PATH.held`` stands in; that one outlives
    a killed holder and must then be removed by hand, since two who both removed it would both go on. Both files are
    gone when their holder has left. Raises PatchError at the time-out, naming the holder, and OSError where the
    directory cannot be written.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        handle = _try_lock(path)
        if handle is not None:
            break
        _pause(path, deadline, timeout_s)
    held = path.with_name(path.name + ".held")
    try:
        while handle < 0 and not _try_hold(held):
            _pause(held, deadline, timeout_s)
        # Those who wait look whether the file they locked is still the one of that name, so it may go.
        gone: tuple[Path, ...] = (path, held) if handle < 0 else (path,)
        try:
            yield handle if handle >= 0 else None
        except StillHeld:
            gone = ()  # whoever comes next has to wait for that process
            raise
        finally:
            for each in gone:
                with contextlib.suppress(OSError):  # one that stays is taken by the next
                    each.unlink(missing_ok=True)
    finally:
        if handle >= 0:
            os.close(handle)


def _try_lock(path: Path) -> int | None:
    """A handle on the locked file; None = somebody else has it; -1 = this file system has no locks."""
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
    except OSError as error:
        if error.errno == errno.ELOOP or (error.errno == errno.EACCES and os.path.lexists(path)):
            why = "is a symbolic link" if error.errno == errno.ELOOP else "cannot be opened: permission denied"
            raise PatchError(
                f"the lock file {path} {why}", remedy="remove it, where no other command is patching there"
            ) from None
        raise
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        current = os.stat(path)
        mine = os.fstat(handle)
        if (current.st_dev, current.st_ino) != (mine.st_dev, mine.st_ino):
            os.close(handle)
            return None
        # Who holds it is for messages only: a full disk must not keep anybody from reverting.
        with contextlib.suppress(OSError):
            os.ftruncate(handle, 0)
            os.pwrite(handle, _me(), 0)
    except (BlockingIOError, FileNotFoundError):
        os.close(handle)
        return None
    except OSError as error:
        os.close(handle)
        if error.errno in _NO_LOCKS:
            return -1
        raise
    return handle


def _try_hold(path: Path) -> bool:
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    except FileExistsError:
        return False
    with os.fdopen(handle, "wb") as file:
        file.write(_me())
    return True


def _pause(path: Path, deadline: float, timeout_s: float) -> None:
    if time.monotonic() >= deadline:
        holder = _holder(path)
        raise PatchError(
            f"another process patches this installation, its lock {path} was not free in {timeout_s:.0f} s"
            + (f" (held by {holder.replace(' ', ' process ')})" if holder else ""),
            remedy="wait for it; where that process was killed, remove the file",
        )
    time.sleep(_POLL_S)  # polled: a lock on a shared file system wakes nobody


def _holder(path: Path) -> str:
    try:
        return read_plain(path).decode(errors="replace").strip()
    except (OSError, PatchError):
        return ""


def _me() -> bytes:
    return f"{socket.gethostname()} {os.getpid()}\n".encode()
