"""A process that is killed in place of one of its disk operations."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

#: What changes the disk, as the applier calls it.
STEPS = ("open", "link", "write", "pwrite", "ftruncate", "fsync", "fchmod", "utime", "replace", "unlink", "close")


def die_at(step: int, last: Callable[[], None] = lambda: None) -> None:
    """Call ``last`` and kill this process in place of its disk operation number ``step``, a write after its half."""
    count = 0

    def wrapped(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal count
            count += 1
            if count == step:
                if name == "write":
                    real(args[0], bytes(args[1])[: len(args[1]) // 2])
                last()
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*args, **kwargs)

        return call

    for name in STEPS:
        setattr(os, name, wrapped(name, getattr(os, name)))
