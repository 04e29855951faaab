"""What a case's ranks waited for, against the gates of our plan.

A barrier of the corpus is a wait of one rank: for endpoints to open before it goes on, or to close before it ends. Our
plan says instead which process is ready by which proof and what waits for whom; agents wait for each other at the star,
and end together with rank 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal
from urllib.parse import urlsplit

import attrs

from disagg_run import LaunchPlan, PlannedProcess
from disagg_run.running.timing import Timing
from tests.parity.case import Case

#: The port on which the launchers themselves meet before they start anything.
RENDEZVOUS = 5000

_STRENGTH = {"tcp_open": 0, "http_ok": 1, "http_generation_ok": 2, "tcp": 0, "http": 1, "generation": 2}


@attrs.frozen(kw_only=True)
class Gap:
    """A wait of a case that our plan does not have, or not as long or as sure."""

    case: str
    rank: int
    #: ``tcp_open 10.0.0.2:8020`` as the case has it.
    wait: str
    #: ``uncovered``: nothing of the plan is proved ready there; ``weaker``: by a weaker proof; ``path``: by another
    #: path; ``shorter``: with less time; ``unordered``: what comes next does not wait for it.
    kind: Literal["uncovered", "weaker", "path", "shorter", "unordered"]
    ours: str = ""

    def __str__(self) -> str:
        return f"{self.case} rank {self.rank}: {self.wait} {self.kind}" + (f": {self.ours}" if self.ours else "")


def gaps(case: Case, plan: LaunchPlan) -> tuple[Gap, ...]:
    """All waits of ``case`` that ``plan`` lacks."""
    return tuple(_Gates(case, plan).all())


@attrs.frozen
class _Proof:
    """One thing that must be seen before a process counts as ready."""

    process: PlannedProcess
    kind: str
    #: Host and port.
    place: tuple[str, int]
    path: str
    timeout_s: float


class _Gates:
    def __init__(self, case: Case, plan: LaunchPlan) -> None:
        self.case, self.plan = case, plan
        self.processes = {process.name: process for rank in plan.ranks for process in rank.processes()}
        self.proofs = [
            _Proof(process, ready.kind, *_place(ready.target, ""), ready.timeout_s)
            for process in self.processes.values()
            for ready in process.ready
            if ready.kind in _STRENGTH
        ]

    def all(self) -> Iterator[Gap]:
        for rank in self.case.data["ranks"]:
            for barrier in rank["barriers"]:
                for target in barrier["targets"]:
                    yield from self._barrier(rank, barrier, *_place(target, rank["ip"]))

    def _barrier(
        self, rank: Mapping[str, Any], barrier: Mapping[str, Any], place: tuple[str, int], path: str
    ) -> Iterator[Gap]:
        def gap(kind: Literal["uncovered", "weaker", "path", "shorter", "unordered"], ours: object = "") -> Gap:
            wait = f"{barrier['kind']} {place[0]}:{place[1]}{path}"
            return Gap(case=self.case.name, rank=rank["rank"], wait=wait, kind=kind, ours=str(ours))

        if place[1] == RENDEZVOUS:
            # The star: every rank's agent joins rank 0's before anything starts.
            if place[0] not in {each.node.address for each in self.plan.ranks}:
                yield gap("uncovered", "no node of the plan")
            if barrier["timeout_s"] > Timing().join_s:
                yield gap("shorter", f"agents have {Timing().join_s:g} s to join")
            return
        here = [proof for proof in self.proofs if proof.place == place]
        if not here:
            yield gap("uncovered")
            return
        if barrier["kind"].endswith("_closed"):
            # Ranks that only serve stay until the router is gone; so do ours, until rank 0 says that the run ends.
            if here[0].process.kind != "router":
                yield gap("uncovered", "its end is not that of the run")
            return
        best = max(here, key=lambda proof: (_STRENGTH[proof.kind], proof.path == path))
        if _STRENGTH[best.kind] < _STRENGTH[barrier["kind"]]:
            yield gap("weaker", best.kind)
        elif best.kind == "http" and barrier["kind"] == "http_ok" and best.path != path:
            yield gap("path", best.path)
        limit = best.timeout_s if barrier["when"] == "after_router" else self._budget(best)
        if barrier["timeout_s"] is not None and limit < barrier["timeout_s"]:
            yield gap("shorter", f"{limit:g} s, the case has {barrier['timeout_s']}")
        following = self._next(rank, barrier)
        if following is not None and best.process.name not in self._before(following):
            yield gap("unordered", f"{following.name} does not wait for {best.process.name}")

    def _budget(self, proof: _Proof) -> float:
        """Seconds from the launch's start until ``proof`` must have come: those of all that must be ready before."""
        return proof.timeout_s + self._started_by(proof.process)

    def _started_by(self, process: PlannedProcess) -> float:
        waits = [self.processes[edge.process] for edge in process.after if edge.until == "ready"]
        return max(
            (max((each.timeout_s for each in other.ready), default=0.0) + self._started_by(other) for other in waits),
            default=0.0,
        )

    def _next(self, rank: Mapping[str, Any], barrier: Mapping[str, Any]) -> PlannedProcess | None:
        """What the rank started next; None = no process of ours: it went on to wait, or to the client."""
        own = self.plan.ranks[int(rank["rank"])].processes()
        if barrier["when"] == "before_server":
            return next(process for process in own if process.kind == "server")
        if barrier["when"] == "after_server":
            return next((process for process in own if process.kind == "router"), None)
        return None

    def _before(self, process: PlannedProcess) -> set[str]:
        """All processes that must be ready before ``process`` starts, and itself."""
        found = {process.name}
        for edge in process.after:
            if edge.until == "ready":
                found |= self._before(self.processes[edge.process])
        return found


def _place(target: str, own: str) -> tuple[tuple[str, int], str]:
    """Host and port, and path, of an endpoint; ``own``: the address that a rank's loopback or wildcard stands for."""
    parts = urlsplit(target if "//" in target else f"//{target}")
    host = parts.hostname or ""
    if host in ("0.0.0.0", "127.0.0.1", "localhost") and own:
        host = own
    return (host, parts.port or 80), parts.path
