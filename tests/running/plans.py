"""Plans for tests of running, built directly from the document's records around small real servers."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import attrs

from disagg_run.planning.document import After, Group, LaunchPlan, PlannedModel, PlannedProcess, RankPlan, Ready
from disagg_run.spec.model import Node

SERVER = Path(__file__).with_name("server.py")
PYTHON = ("@python", "-S", str(SERVER))

#: Ports that servers get; each test has addresses of its own, so they never clash.
HTTP, ROUTER, JOIN = 18010, 18000, 18020

_numbers = itertools.count(1)


def addresses(count: int) -> list[str]:
    """Loopback addresses that no other test of this machine uses at the same time, one a rank."""
    pid = os.getpid()
    net = f"127.{192 + pid // 250 % 60}.{1 + pid % 250}"
    return [f"{net}.{next(_numbers) % 250 + 1}" for _ in range(count)]


def edges(*names: str, until: str = "ready") -> tuple[After, ...]:
    return tuple(After(process=name, until=until) for name in names)  # type: ignore[arg-type]


def server(
    name: str, address: str, *words: object, port: int = HTTP, timeout_s: float = 20.0, **fields: Any
) -> PlannedProcess:
    """A server with an HTTP port and the proofs that an engine's head has."""
    base = f"http://{address}:{port}"
    fields.setdefault("kind", "server")
    fields.setdefault(
        "ready",
        (
            Ready(
                kind="http",
                target=f"{base}/health",
                timeout_s=timeout_s,
                identity={"listener": "http", "served_model": "toy", "url": f"{base}/v1/models"},
            ),
        ),
    )
    argv = ("toy-server", "--port", str(port), *map(str, words))
    fields.setdefault("ports", {"http": port})
    return PlannedProcess(name=name, argv=argv, exec=(*PYTHON, *argv[1:]), **fields)


def command(name: str, kind: str, *argv: str, **fields: Any) -> PlannedProcess:
    """A process with any command."""
    return PlannedProcess(name=name, kind=kind, argv=argv, **fields)  # type: ignore[arg-type]


def python(name: str, kind: str, code: str, **fields: Any) -> PlannedProcess:
    """A process that runs a line of Python."""
    return command(name, kind, sys.executable, "-S", "-c", code, **fields)


def router(address: str, heads: Sequence[tuple[str, str]], *words: object, **fields: Any) -> PlannedProcess:
    """A router that forwards each generation to every head; ``heads``: names and addresses."""
    bases = [f"http://{head}:{HTTP}" for _, head in heads]
    fields.setdefault("after", edges(*(name for name, _ in heads)))
    return server("router", address, "--forward", *bases, *words, port=ROUTER, kind="router", **fields)


def plan(ranks: Iterable[tuple[str, Sequence[PlannedProcess]]], **fields: Any) -> LaunchPlan:
    """A simulated plan of these ranks: address and processes each."""
    return LaunchPlan(
        engine="toy-disagg",
        engine_version="1.0",
        connector="toy",
        model=PlannedModel(name="toy", path="/models/toy", served_name="toy"),
        ranks=[
            RankPlan(rank=rank, node=Node(address=address), groups=[Group(processes=processes)])
            for rank, (address, processes) in enumerate(ranks)
        ],
        **{"bound": True, "simulated": True, **fields},
    )


@attrs.define
class Launch:
    """The usual launch: prefill-0 and the router on rank 0, one decode worker on each further rank."""

    decodes: int = 1
    #: Further words by process name, and fields of its record.
    words: dict[str, list[object]] = attrs.field(factory=dict)
    fields: dict[str, dict[str, Any]] = attrs.field(factory=dict)
    #: Further processes by rank.
    more: dict[int, list[PlannedProcess]] = attrs.field(factory=dict)
    addresses: list[str] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.addresses = addresses(1 + self.decodes)

    def plan(self) -> LaunchPlan:
        names = ["prefill-0", *(f"decode-{index}" for index in range(self.decodes))]
        heads = list(zip(names, self.addresses, strict=True))
        ranks = [[self._server(name, address)] for name, address in heads]
        first = self.addresses[0]
        ranks[0].append(router(first, heads, *self.words.get("router", ()), **self.fields.get("router", {})))
        for rank, processes in self.more.items():
            ranks[rank][:0] = processes
        return plan(zip(self.addresses, ranks, strict=True))

    def _server(self, name: str, address: str) -> PlannedProcess:
        return server(name, address, *self.words.get(name, ()), **self.fields.get(name, {}))
