"""Whether the run directory can still be written to: what runs goes on without it, and a user is told so once."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from disagg_run.errors import RunError
from disagg_run.input_files import os_reason

#: Between two looks, in seconds.
_LOOK_S = 1.0
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_GONE = (errno.ENOENT, errno.ENOTDIR, errno.ESTALE)


def remedy(error: OSError) -> str:
    """What to do where a file of the run directory cannot be written or read."""
    if error.errno in _FULL:
        return "free some space there, or name another place with --run-dir"
    if error.errno in _GONE:
        return "leave the run directory where it is until the run has ended"
    return "make it writable, or name another place with --run-dir"


@contextlib.contextmanager
def writing(path: Path, what: str) -> Iterator[None]:
    """Do what writes a file of the run directory: RunError with the remedy where the system refuses.

    ``what``: the kind of file, as the beginning of a sentence.
    """
    try:
        yield
    except OSError as error:
        reason = f"{what} cannot be written to {str(path)!r}: {os_reason(error)}"
        raise RunError(reason, remedy=remedy(error)) from None


class Room:
    """The run directory, as something that can fill up, vanish, or be closed to us while the run is up."""

    def __init__(self, path: Path, warn: Callable[..., None]) -> None:
        self._path = path
        self._warn = warn
        self._told = False
        stat = path.stat()
        self._mark = (stat.st_dev, stat.st_ino)

    def lost(self, error: OSError) -> None:
        """Take note that something could not be written; a user is told of the first time."""
        if not self._told:
            self._told = True
            means = "logs, events and results may be lost from here on; nothing is ended for that"
            told = {"path": str(self._path), "reason": os_reason(error), "means": means, "remedy": remedy(error)}
            self._warn("run_dir.lost", **told)

    def obstacle(self) -> OSError | None:
        """Why nothing can be written now; None where nothing is in the way."""
        try:
            stat = self._path.stat()
            room = os.statvfs(self._path)
        except OSError as error:
            return error
        if (stat.st_dev, stat.st_ino) != self._mark:  # another directory stands there by now
            return _error(errno.ENOENT)
        if room.f_flag & os.ST_RDONLY:
            return _error(errno.EROFS)
        # A file system without a bound says 0 of 0.
        free = room.f_bfree if os.geteuid() == 0 else room.f_bavail
        if (room.f_blocks and not free) or (room.f_files and not room.f_favail):
            return _error(errno.ENOSPC)
        return None if os.access(self._path, os.W_OK) else _error(errno.EACCES)

    async def watch(self) -> None:
        """Look again and again, since servers write their logs themselves, and most say nothing of what is lost."""
        while not self._told:
            await asyncio.sleep(_LOOK_S)
            error = self.obstacle()
            if error is not None:
                self.lost(error)


def _error(number: int) -> OSError:
    return OSError(number, os.strerror(number))
