"""Exits of child processes, seen when they happen."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Iterator

from disagg_run.running.outcome import Exit


class Reaper:
    """Tells who of our children exited, and reaps orphans that a subreaper inherits.

    A watched child is left a zombie after its exit until ``release``: so long its pid, and the process group of that
    number, can be nobody else's, and signalling the group is safe.
    """

    def __init__(self) -> None:
        self._watched: dict[int, Callable[[Exit], None]] = {}
        self._held: set[int] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._orphans = True

    def open(self) -> None:
        """Start listening for SIGCHLD on the running loop."""
        self._loop = asyncio.get_running_loop()
        self._loop.add_signal_handler(signal.SIGCHLD, self.collect)

    def close(self) -> None:
        """Stop listening."""
        if self._loop is not None:
            self._loop.remove_signal_handler(signal.SIGCHLD)

    def watch(self, pid: int, on_exit: Callable[[Exit], None]) -> None:
        """Call ``on_exit`` once the child ``pid`` has exited."""
        self._watched[pid] = on_exit

    def release(self, pid: int) -> None:
        """Let go of an exited child's pid."""
        self._held.discard(pid)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)

    @contextlib.contextmanager
    def leaving_orphans(self) -> Iterator[None]:
        """Reap only watched children meanwhile, because other code starts and waits for children of its own."""
        self._orphans = False
        try:
            yield
        finally:
            self._orphans = True

    def collect(self) -> None:
        """See which children have exited; runs at each SIGCHLD."""
        for pid in tuple(self._watched):
            ended = _ended(os.P_PID, pid)
            if ended is not None:
                self._held.add(pid)
                self._watched.pop(pid)(ended[1])
        while self._orphans:
            # Looks at one exited child without reaping it; a held one in front hides orphans until its release.
            other = _ended(os.P_ALL, 0)
            if other is None or other[0] in self._held or other[0] in self._watched:
                break
            with contextlib.suppress(ChildProcessError):
                os.waitpid(other[0], os.WNOHANG)


def _ended(kind: int, pid: int) -> tuple[int, Exit] | None:
    try:
        info = os.waitid(kind, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return None
    if info is None:
        return None
    if info.si_code == os.CLD_EXITED:
        return info.si_pid, Exit(code=info.si_status)
    return info.si_pid, Exit(signum=info.si_status)
