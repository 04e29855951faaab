"""A process that is killed or stopped in place of one of its disk operations, or finds a file mounted on meanwhile."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

#: What changes the disk, as the applier calls it.
STEPS = ("open", "link", "write", "pwrite", "ftruncate", "fsync", "fchmod", "utime", "replace", "unlink", "close")

_MS_BIND = 4096  # linux/mount.h


def die_at(
    step: int, last: Callable[[], object] = lambda: None, by: signal.Signals = signal.SIGKILL
) -> Callable[[], int]:
    """Call ``last`` and send this process ``by`` in place of its disk operation number ``step``, a write after half.

    Gives what tells how many operations there were so far.
    """
    count = 0
    reals = {name: getattr(os, name) for name in STEPS}

    def wrapped(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal count
            count += 1
            if count == step:
                if name == "write":
                    real(args[0], bytes(args[1])[: len(args[1]) // 2])
                last()
                os.kill(os.getpid(), by)
            return real(*args, **kwargs)

        return call

    def done() -> int:
        for name, real in reals.items():
            setattr(os, name, real)
        return count

    for name, real in reals.items():
        setattr(os, name, wrapped(name, real))
    return done


def block_at_first_rename(path: Path) -> None:
    """Mount ``path`` on itself just before this process renames for the first time: nobody can replace it then."""
    real, done = os.replace, False

    def call(*args: Any, **kwargs: Any) -> None:
        nonlocal done
        if not done:
            done = True
            block(path)
        real(*args, **kwargs)

    os.replace = call


def block(path: Path) -> None:
    """Mount a file on itself; without a process or a disk operation, which would be counted."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(bytes(path), bytes(path), None, _MS_BIND, None):
        raise OSError(ctypes.get_errno(), "mount")
