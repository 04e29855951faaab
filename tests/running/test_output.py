"""The proof that a process prints a text, for routers that tell in their log alone which workers have come."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from disagg_run.errors import GateTimeout
from disagg_run.planning.document import Ready
from disagg_run.running.output import Search, until_printed
from disagg_run.running.proctree import ProcessStat
from disagg_run.running.supervisor import Running
from tests.running.launched import Launched
from tests.running.plans import Launch, command

Starter = Callable[..., Launched]


def proof(text: str, timeout_s: float = 20.0) -> Ready:
    return Ready(kind="output", target=text, timeout_s=timeout_s, identity={"listener": "http"})


def running(log: Path) -> Running:
    return Running(
        plan=command("router", "router", "toy-router"),
        stat=ProcessStat(pid=1, ppid=0, pgid=1, sid=1, state="S", start=0),
        log=log,
        started=time.monotonic(),
    )


@pytest.mark.parametrize(
    "parts",
    [
        (b"Add Prefill [HTTP:10.0.0.1:1,\n",),
        (b"noise\nAdd Pre", b"fill [HTTP:10.0.0.1:1,\n"),
        (b"x" * (1 << 20), b"y" * ((1 << 20) - 5) + b"Add Prefill [HTTP:10.0.0.1:1, z"),
        (b"Add Prefill [HTTP:10.0.0.1:12,\n", b"\xff\xfe", b"Add Prefill [HTTP:10.0.0.1:1,"),
    ],
)
def test_a_text_is_found_wherever_its_bytes_are_cut(tmp_path: Path, parts: tuple[bytes, ...]) -> None:
    log = tmp_path / "log"
    log.touch()
    with log.open("rb", buffering=0) as read, log.open("ab", buffering=0) as file:
        search = Search(read, "Add Prefill [HTTP:10.0.0.1:1,")
        for part in parts:
            assert not search.found()
            file.write(part)
        assert search.found()


def test_a_text_that_never_comes_ends_the_wait_with_its_name(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("Add Prefill [HTTP:10.0.0.1:12,\n")
    with pytest.raises(GateTimeout, match=r"router has not printed 'Add Prefill \[HTTP:10\.0\.0\.1:1,' within 0\.2 s"):
        asyncio.run(until_printed(running(log), proof("Add Prefill [HTTP:10.0.0.1:1,", 0.2)))


@pytest.mark.real
def test_B13_a_router_that_has_not_named_every_worker_is_not_serving(launch: Starter) -> None:
    told = ["--say", "Add a, Add b,"]
    good = Launch(words={"router": [*told]})
    plan = good.plan()
    ready = plan.process("router").ready
    asked = Launch(words={"router": [*told]}, fields={"router": {"ready": (*ready, proof("Add a,"), proof("Add b,"))}})
    asked.addresses = good.addresses
    launched = launch(asked.plan(), smoke=1)
    assert launched.end() == 0

    lacking = Launch(words={"router": [*told]})
    ready = lacking.plan().process("router").ready
    lacking.fields["router"] = {"ready": (*ready, proof("Add a,"), proof("Add c,", 2.0))}
    launched = launch(lacking.plan())
    assert launched.end() == GateTimeout.exit_code
    assert "router has not printed 'Add c,' within 2 s" in launched.text()
