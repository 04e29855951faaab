"""Processes of this machine as /proc shows them: who descends from whom, and signals that hit only the one meant."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from collections.abc import Iterable, Mapping

import attrs

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36

#: States of a process that runs no more: zombie and dead.
_GONE = ("Z", "X", "x")


@attrs.frozen(kw_only=True)
class ProcessStat:
    """One process."""

    pid: int
    ppid: int
    pgid: int
    sid: int
    #: ``R``, ``S``, ``D``, ``T`` (stopped by a signal), ``t`` (by a debugger), ``Z`` (zombie) …
    state: str
    #: Clock ticks from boot to its start; with the pid it names a process once and for all.
    start: int

    @property
    def alive(self) -> bool:
        """Whether it still runs (a zombie only waits to be reaped)."""
        return self.state not in _GONE


def read(pid: int) -> ProcessStat | None:
    """The process with this pid; None where there is none."""
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
            text = file.read()
    except OSError:
        return None
    # The command's name may hold blanks and parentheses; what follows its last one is numbers.
    fields = text[text.rindex(b")") + 2 :].split()
    return ProcessStat(
        pid=pid,
        ppid=int(fields[1]),
        pgid=int(fields[2]),
        sid=int(fields[3]),
        state=fields[0].decode("ascii"),
        start=int(fields[19]),
    )


def snapshot() -> dict[int, ProcessStat]:
    """All processes of this machine (or container) by pid."""
    found = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            stat = read(int(entry))
            if stat is not None:
                found[stat.pid] = stat
    return found


def descendants(root: int, stats: Mapping[int, ProcessStat]) -> list[ProcessStat]:
    """The processes below ``root``, parents before children."""
    children: dict[int, list[ProcessStat]] = {}
    for stat in stats.values():
        children.setdefault(stat.ppid, []).append(stat)
    found: list[ProcessStat] = []
    level = [root]
    while level:
        born = [child for pid in level for child in children.get(pid, ())]
        found += born
        level = [child.pid for child in born]
    return found


def has_variable(pid: int, name: str, value: str) -> bool:
    """Whether a process was started with the variable ``name`` set to ``value``; False where that cannot be read."""
    try:
        with open(f"/proc/{pid}/environ", "rb", buffering=0) as file:
            return os.fsencode(f"{name}={value}") in file.read().split(b"\0")
    except OSError:
        return False


def send(stat: ProcessStat, signum: int) -> bool:
    """Signal exactly this process: never another one that got its pid since. Returns whether it was there."""
    try:
        descriptor = os.pidfd_open(stat.pid)
    except ProcessLookupError:
        return False
    except OSError:  # a kernel before 5.3: check, then signal, with a gap of microseconds
        return still(stat) and _kill(stat.pid, signum)
    try:
        # The descriptor holds on to one process; only then is it sure that the start time is that one's.
        if not still(stat):
            return False
        signal.pidfd_send_signal(descriptor, signum)
    except (ProcessLookupError, PermissionError):
        return False
    finally:
        os.close(descriptor)
    return True


def send_all(stats: Iterable[ProcessStat], *signums: int) -> None:
    """Signal each of these processes that still runs."""
    for stat in stats:
        for signum in signums:
            send(stat, signum)


def still(stat: ProcessStat) -> bool:
    """Whether exactly this process still runs."""
    now = read(stat.pid)
    return now is not None and now.start == stat.start and now.alive


def _kill(pid: int, signum: int) -> bool:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signum)
        return True
    return False


def become_subreaper() -> None:
    """Let orphaned descendants become children of this process instead of init's."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def signal_on_parent_death(signum: int) -> None:
    """Have the kernel send this process ``signum`` when its parent ends, however it ends."""
    _prctl(_PR_SET_PDEATHSIG, signum)


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
