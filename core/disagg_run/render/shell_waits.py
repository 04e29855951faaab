"""What a process of a rank's script waits for, as lines of that script."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Iterator, Sequence
from urllib.parse import urlsplit

from disagg_run.errors import PlanError
from disagg_run.plain_text import printable
from disagg_run.planning.document import After, LaunchPlan, PlannedProcess, RankPlan, Ready

#: Seconds for a listener that has no probe with a bound of its own.
DEFAULT_TIMEOUT_S = 1800


def start_order(processes: Sequence[PlannedProcess]) -> tuple[PlannedProcess, ...]:
    """The processes of a rank so that none stands before one of the same rank that it waits for."""
    left = {process.name: process for process in processes}
    order: list[PlannedProcess] = []
    while left:
        free = [
            process
            for process in left.values()
            if not any(edge.process in left and edge.process != process.name for edge in process.after)
        ]
        # A plan has no circle of waits; a document changed by hand may: then the order is the document's.
        for process in free or list(left.values()):
            order.append(left.pop(process.name))
    return tuple(order)


class Whereabouts:
    """Where each process of a plan is, and with that how to wait for it."""

    def __init__(self, plan: LaunchPlan) -> None:
        self._model = plan.model.served_name
        self._places = {process.name: (process, rank) for rank in plan.ranks for process in rank.processes()}

    def waits(self, rank: RankPlan, process: PlannedProcess) -> Iterator[str]:
        """Lines that wait until ``process`` may start.

        What a setup of the same rank must have done is done: the script ran it to its end. What another rank can be
        asked over the network is asked; for what cannot (a setup, a mere start) there is a comment. PlanError where
        the process waits for one that the plan does not have.
        """
        for edge in process.after:
            if edge.process not in self._places:
                raise PlanError(f"{process.name} waits for {edge.process!r}, which is no process of the plan")
            other, its_rank = self._places[edge.process]
            if its_rank.rank == rank.rank and (edge.until == "started" or other.kind == "setup"):
                continue
            lines = list(_asked(other, edge, its_rank.node.address, self._model))
            if lines:
                yield from lines
            else:
                what = (
                    f"{process.name} is to start when {edge.process} is {edge.until}; that cannot be asked from here."
                )
                yield f"# {printable(what)}"


def _asked(other: PlannedProcess, edge: After, address: str, model: str) -> Iterator[str]:
    name = shlex.quote(other.name)
    if edge.until == "ready":
        for ready in other.ready:
            # What a process of another rank prints cannot be asked from here.
            if ready.kind not in ("exit", "output"):
                yield f"wait_for {name} {math.ceil(ready.timeout_s)} {_test(ready, model)}"
    elif edge.until == "listening" and other.ports:
        port = other.ports.get("http", next(iter(other.ports.values())))
        bound = math.ceil(max((ready.timeout_s for ready in other.ready), default=DEFAULT_TIMEOUT_S))
        yield f"wait_for {name} {bound} tcp_answers {shlex.quote(address)} {port}"


def _test(ready: Ready, model: str) -> str:
    if ready.kind == "tcp":
        place = urlsplit(f"//{ready.target}")
        return f"tcp_answers {shlex.quote(place.hostname or '')} {place.port}"
    place = urlsplit(ready.target)
    words = [place.hostname or "", str(place.port or 80), place.path + (f"?{place.query}" if place.query else "")]
    if ready.kind == "http":
        return " ".join(["http_answers", *map(shlex.quote, words)])
    body: dict[str, object] = {"model": ready.identity.get("served_model") or model, "max_tokens": 1}
    if place.path.rstrip("/").endswith("/chat/completions"):
        body["messages"] = [{"role": "user", "content": "Say one word."}]
    else:
        body["prompt"] = "Say one word."
    return " ".join(["generates", *map(shlex.quote, [*words, json.dumps(body)])])
