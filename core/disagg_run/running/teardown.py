"""Ends everything that was started, in reverse order, and looks that nothing is left."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

import attrs

from disagg_run.planning.document import PlannedProcess
from disagg_run.running import proctree, sockets
from disagg_run.running.proctree import ProcessStat
from disagg_run.running.supervisor import POLITE, Running, Supervisor
from disagg_run.spec.model import as_tuple

#: Between two looks at processes that are being ended, in seconds.
_LOOK_S = 0.02
_LOOK_MOST_S = 0.2
#: For what got SIGKILL to be gone, in seconds; longer only where the kernel itself is stuck (a driver).
_AFTER_KILL_S = 2.0


@attrs.frozen(kw_only=True)
class Swept:
    """How the ending of some processes went."""

    #: Processes that did not heed SIGTERM in time.
    killed: tuple[str, ...] = attrs.field(default=(), converter=as_tuple)
    #: What is still there, in words.
    left: tuple[str, ...] = attrs.field(default=(), converter=as_tuple)


async def end(supervisor: Supervisor, group: Sequence[Running], grace_s: float, hurry: asyncio.Event) -> Swept:
    """End these processes and all that descends from them: TERM to each group, KILL after ``grace_s``.

    ``hurry``: once set, the grace is over. One that cannot be ended never stops the others from being ended.
    """
    for running in reversed(group):
        for signum in POLITE:
            running.signal_group(signum)
    deadline = time.monotonic() + grace_s
    # What left its group gets no TERM with it; it is told in the first round.
    remaining = _living(group)
    proctree.send_all(_outside(remaining), *POLITE)
    remaining = await _until_gone(group, lambda: deadline if not hurry.is_set() else 0.0)
    killed = sorted({running.name for running, family in remaining if family})
    if remaining:
        for running, family in remaining:
            running.signal_group(signal.SIGKILL)
            proctree.send_all(family, signal.SIGKILL)
        last = time.monotonic() + _AFTER_KILL_S
        remaining = await _until_gone(group, lambda: last, signum=signal.SIGKILL)
    left = [f"{running.name}: pid {stat.pid} in state {stat.state}" for running, family in remaining for stat in family]
    for running in group:
        if running.exit is not None and not any(each is running for each, _ in remaining):
            supervisor.forget(running)
    return Swept(killed=killed, left=left)


async def _until_gone(
    group: Sequence[Running], deadline: Callable[[], float], signum: int = 0
) -> list[tuple[Running, list[ProcessStat]]]:
    pause = _LOOK_S
    remaining = _living(group)
    while remaining and time.monotonic() < deadline():
        if signum:  # a killed process may have forked in between
            for _, family in remaining:
                proctree.send_all(family, signum)
        await asyncio.sleep(pause)
        pause = min(pause * 1.3, _LOOK_MOST_S)
        remaining = _living(group)
    return remaining


def _living(group: Sequence[Running]) -> list[tuple[Running, list[ProcessStat]]]:
    stats = proctree.snapshot()
    found = [(running, running.family(stats)) for running in group]
    # Also one whose exit the reaper has yet to tell.
    return [(running, family) for running, family in found if family or running.exit is None]


def _outside(remaining: Iterable[tuple[Running, list[ProcessStat]]]) -> list[ProcessStat]:
    return [stat for running, family in remaining for stat in family if stat.pgid != running.pid]


async def end_strays(grace_s: float) -> Swept:
    """End what descends from this agent and belongs to no process any more."""

    def strays() -> list[ProcessStat]:
        return [stat for stat in proctree.descendants(os.getpid(), proctree.snapshot()) if stat.alive]

    found = strays()
    proctree.send_all(found, *POLITE)
    start = time.monotonic()
    while found and time.monotonic() < start + grace_s + _AFTER_KILL_S:
        await asyncio.sleep(_LOOK_S)
        found = strays()
        if time.monotonic() > start + grace_s:
            proctree.send_all(found, signal.SIGKILL)
    return Swept(left=[f"pid {stat.pid} in state {stat.state}" for stat in found])


@attrs.frozen(kw_only=True)
class Held:
    """A port of the plan on which somebody listens after teardown."""

    #: Whether by a process of this run; else by somebody else's, which is not touched.
    ours: bool
    #: Port, process of the plan and holder, in words.
    text: str


async def open_ports(
    processes: Iterable[PlannedProcess], address: str, told: Mapping[str, str], wait_s: float = 0.5
) -> tuple[Held, ...]:
    """The ports of these processes that are still listened on at this node, after waiting ``wait_s`` for them.

    What this agent started descends from it, or has in its environment all that it tells its processes, ``told``.
    """
    ports = {port: process.name for process in processes for port in planned_ports(process)}
    own = sockets.numeric(address)
    deadline = time.monotonic() + wait_s
    while True:
        found = [each for each in sockets.listening(ports) if each.takes(own)]
        if not found or time.monotonic() > deadline:
            return tuple(_held(each, ports[each.port], told) for each in found)
        await asyncio.sleep(_LOOK_S)


def _held(found: sockets.ListeningSocket, process: str, told: Mapping[str, str]) -> Held:
    mine = {os.getpid(), *(each.pid for each in proctree.descendants(os.getpid(), proctree.snapshot()))}
    ours = any(
        pid in mine or all(proctree.has_variable(pid, *each) for each in told.items()) for pid in sockets.holders(found)
    )
    return Held(ours=ours, text=f"port {found.port} of {process} is held by {sockets.holder(found)}")


def planned_ports(process: PlannedProcess) -> list[int]:
    """Every port that the plan gives a process."""
    counts: Mapping[str, int] = process.port_counts
    return [port + index for name, port in process.ports.items() for index in range(counts.get(name, 1))]
