"""How far each process of the launch has come, and waiting for it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Literal

from disagg_run.planning.document import LaunchPlan, PlannedProcess

Stage = Literal["planned", "started", "listening", "ready"]
STAGES: tuple[Stage, ...] = ("planned", "started", "listening", "ready")


class Board:
    """The stages that processes have reached; a later stage includes the earlier ones."""

    def __init__(self, names: Iterable[str]) -> None:
        self._stages: dict[str, int] = dict.fromkeys(names, 0)
        self._changed = asyncio.Event()

    def stage(self, name: str) -> Stage:
        """How far a process has come."""
        return STAGES[self._stages[name]]

    def reach(self, name: str, stage: Stage) -> bool:
        """Record that a process came as far as ``stage``; False where that was known."""
        index = STAGES.index(stage)
        if index <= self._stages.get(name, len(STAGES)):
            return False
        self._stages[name] = index
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
        return True

    def reached(self, name: str, stage: Stage) -> bool:
        """Whether a process came at least as far as ``stage``."""
        return self._stages[name] >= STAGES.index(stage)

    def open(self, waits: Iterable[tuple[str, Stage]]) -> list[tuple[str, Stage]]:
        """Those waits that have not come true."""
        return [(name, stage) for name, stage in waits if not self.reached(name, stage)]

    async def wait(self, waits: Iterable[tuple[str, Stage]]) -> None:
        """Until all of ``waits`` have come true."""
        missing = self.open(waits)
        while missing:
            await self._changed.wait()
            missing = self.open(missing)


def waits_of(process: PlannedProcess) -> list[tuple[str, Stage]]:
    """What a process waits for before it starts."""
    return [(edge.process, edge.until) for edge in process.after]


def watchers(plan: LaunchPlan) -> dict[str, set[int]]:
    """The ranks that must hear of a process of another rank, because one of theirs waits for it."""
    home = homes(plan)
    found: dict[str, set[int]] = {}
    for rank in plan.ranks:
        for process in rank.processes():
            for edge in process.after:
                if home[edge.process] != rank.rank:
                    found.setdefault(edge.process, set()).add(rank.rank)
    return found


def homes(plan: LaunchPlan) -> dict[str, int]:
    """The rank of each process."""
    return {process.name: rank.rank for rank in plan.ranks for process in rank.processes()}


def must_listen(plan: LaunchPlan) -> frozenset[str]:
    """The processes for whose listening somebody waits."""
    return frozenset(
        edge.process
        for rank in plan.ranks
        for process in rank.processes()
        for edge in process.after
        if edge.until == "listening"
    )


def join_ports(process: PlannedProcess) -> dict[str, int]:
    """The ports that show that a process listens: those that open before it is ready, where it has such.

    A head opens its join port early and its HTTP port when the followers have joined; who waits for the join port must
    not wait for the other.
    """
    probed = {ready.identity.get("listener", "") for ready in process.ready}
    early: Mapping[str, int] = {name: port for name, port in process.ports.items() if name not in probed}
    return dict(early or process.ports)
