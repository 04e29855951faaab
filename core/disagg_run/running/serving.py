"""Rank 0 once all processes are ready: the canary, and what a user is told."""

from __future__ import annotations

import asyncio
import json
import shlex
import time

import attrs

from disagg_run.context import host_port
from disagg_run.errors import CanaryError
from disagg_run.planning.document import LaunchPlan, PlannedProcess, Ready
from disagg_run.running.probes import Prober, generation_body
from disagg_run.running.timing import Timing

_AGAIN_S = 0.2
_AGAIN_MOST_S = 2.0


@attrs.frozen(kw_only=True)
class Entrance:
    """Where clients talk to the launch."""

    #: Process that serves it: the router, or a head where the router is external.
    process: str
    #: ``http://host:port``.
    base: str
    #: Served model.
    model: str

    @property
    def completions(self) -> str:
        """URL for completions."""
        return f"{self.base}/v1/completions"

    def curl(self) -> str:
        """A command line that asks for one completion and works as it stands."""
        body = generation_body(self.completions, self.model, tokens=32, prompt="Say hello.")
        words = ["curl", "-sS", self.completions, "-H", "Content-Type: application/json", "-d", json.dumps(body)]
        return " ".join(shlex.quote(word) for word in words)


def entrance(plan: LaunchPlan) -> Entrance | None:
    """The router's address; None where the plan has no router."""
    for rank in plan.ranks:
        for process in rank.processes():
            if process.kind == "router":
                port = process.ports.get("http") or next(iter(process.ports.values()), 0)
                base = f"http://{host_port(rank.node.address, port)}"
                return Entrance(process=process.name, base=base, model=plan.model.served_name)
    return None


async def canary(prober: Prober, where: Entrance, timing: Timing) -> float:
    """Prove one generation through the router; returns the seconds it took.

    Raises CanaryError with the router's last answer where none comes.
    """
    start = time.monotonic()
    pause = _AGAIN_S
    while True:
        asked = time.monotonic()
        lack = await prober.generate(where.completions, where.model, timeout_s=timing.canary_s)
        now = time.monotonic()
        if not lack:
            return now - asked
        if now - start > timing.canary_errors_s:
            raise CanaryError(
                f"no generation came through {where.process} in {now - start:.0f} s: {lack}",
                remedy="its log says what it made of the request",
            )
        await asyncio.sleep(pause)
        pause = min(pause * 1.5, _AGAIN_MOST_S)


def probes_to_repeat(process: PlannedProcess) -> list[Ready]:
    """The proofs of a ready process that are asked again while it serves: cheap ones that a hung process fails.

    Whose process it is was proved before it was ready and is not asked again.
    """
    return [attrs.evolve(ready, identity={}) for ready in process.ready if ready.kind == "http"]
