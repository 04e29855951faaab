"""The stand-in of HiCache's store beside the real ``mooncake_master``: the same argv, the same answers."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import attrs
import httpx
import pytest

from disagg_run import LaunchPlan, LaunchSpec, PlannedProcess, build_host, plan
from disagg_sglang.simulation_store import FLAGS_FILE
from tests.real import mooncake
from tests.running.launched import until

pytestmark = [pytest.mark.real, pytest.mark.usefixtures("this_machine")]

SETTINGS = {"kv_offloading": "dram", "hicache_storage_backend": "mooncake", "mc_master_port": 20061}
NAMES = ("real", "stand-in")

#: Paths by the listener that is asked: all that is seen of a store without clients.
GETS = {
    "metadata": ("/health", "/metadata", "/metadata?key=k", "/nope", "/"),
    "metrics": ("/health", "/role", "/get_all_segments", "/get_all_keys", "/query_key?key=k", "/nope"),
}


@pytest.fixture(scope="module")
def master() -> mooncake.Master:
    return mooncake.install()


@attrs.frozen
class Start:
    """Starts the master of a plan, the real one or its stand-in, with other words at its end if need be."""

    real: mooncake.Master
    made: LaunchPlan
    log: Path
    stack: contextlib.ExitStack

    @property
    def planned(self) -> PlannedProcess:
        return self.made.process("mooncake-master")

    def __call__(self, name: str, *more: str) -> subprocess.Popen[bytes]:
        words = [str(self.real.program), *self.planned.argv[1:]]
        environ = self.real.environ()
        if name == "stand-in":
            # Not told of a node's address, it listens on all, as the program does.
            words, environ = [sys.executable, *self.planned.exec[1:]], dict(os.environ)
        with self.log.open("wb") as log:
            process = subprocess.Popen([*words, *more], stdout=log, stderr=subprocess.STDOUT, env=environ)
        self.stack.callback(process.wait, 20)
        self.stack.callback(process.kill)
        return process

    def url(self, listener: str) -> str:
        return f"http://127.0.0.1:{self.planned.ports[listener]}"

    def accepts(self, listener: str) -> bool:
        with socket.socket() as client:
            return client.connect_ex(("127.0.0.1", self.planned.ports[listener])) == 0

    def ready(self) -> bool:
        return all(map(self.accepts, ("metadata", "metrics", "rpc")))


@pytest.fixture
def start(master: mooncake.Master, tmp_path: Path) -> Iterator[Start]:
    made = plan(
        LaunchSpec(engine="sglang-disagg", model="DeepSeek-R1-0528", settings=SETTINGS, simulate=True),
        host=build_host(),
    )
    with contextlib.ExitStack() as stack:
        yield Start(master, made, tmp_path / "log", stack)


def test_the_flags_are_those_of_the_program(master: mooncake.Master) -> None:
    words = [str(master.program), "--help"]
    shown = subprocess.run(words, env=master.environ(), capture_output=True, text=True, timeout=60, check=False)
    found = re.findall(r"^    -(\w+) \(.*?\)\s+type:\s+(\w+)", shown.stdout, re.DOTALL | re.MULTILINE)
    document = json.loads(FLAGS_FILE.read_text())
    assert document["types"] == dict(found)
    assert document["version"] == mooncake.VERSION


def answers(start: Start) -> dict[str, tuple[int, str, str]]:
    """Status, text and type of body of all that a master is asked."""
    found = {}
    with httpx.Client(trust_env=False, timeout=10) as client:

        def ask(listener: str, method: str, path: str, body: bytes | None = None) -> None:
            answer = client.request(method, start.url(listener) + path, content=body)
            kind = answer.headers.get("content-type", "")
            found[f"{len(found)} {method} {listener} {path}"] = (answer.status_code, answer.text, kind)

        for listener, paths in GETS.items():
            for path in paths:
                ask(listener, "GET", path)
        key = "/metadata?key=mooncake%2Fram%2Fn0%3A1"
        for method in ("PUT", "GET", "DELETE", "GET", "DELETE", "POST"):
            ask("metadata", method, key, b'{"a": 1}' if method in ("PUT", "POST") else None)
        gauges = client.get(start.url("metrics") + "/metrics").text.splitlines()
        found["gauges"] = (0, "\n".join(each for each in gauges if "_allocated_" in each or "_capacity_" in each), "")
    return found


def test_both_answer_alike_and_end_by_the_same_signal(start: Start) -> None:
    seen = {}
    for name in NAMES:
        process = start(name)
        until(start.ready, f"the {name} master: {start.log}", 20)
        seen[name] = answers(start)
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0, name
    ours, theirs = seen["stand-in"], seen["real"]
    assert set(ours) == set(theirs)
    for question, (status, text, kind) in theirs.items():
        if question == "gauges":
            # The stand-in has the gauges of memory, the program a hundred more.
            assert set(ours[question][1].splitlines()) <= set(text.splitlines())
            continue
        assert ours[question][:2] == (status, text), question
        # Where the program names no type, any will do.
        assert not kind or ours[question][2] == kind, question


@pytest.mark.parametrize("listener", ["metadata", "metrics", "rpc"])
def test_a_taken_port_ends_both_alike(listener: str, start: Start) -> None:
    with socket.create_server(("0.0.0.0", start.planned.ports[listener])):
        codes = {name: start(name).wait(20) for name in NAMES}
    assert codes == dict.fromkeys(NAMES, -signal.SIGABRT if listener == "metadata" else 1)


@pytest.mark.parametrize(
    "words",
    [
        ("--no_such_flag", "1"),
        ("--rpc_port", "abc"),
        ("--eviction_ratio", "5%"),
        ("--enable_ha=maybe",),
        ("--rpc_port",),
    ],
)
def test_a_bad_flag_ends_both_alike(words: tuple[str, ...], start: Start) -> None:
    said: Callable[[], str] = start.log.read_text
    ends = {}
    for name in NAMES:
        code = start(name, *words).wait(20)
        (message,) = [line for line in said().splitlines() if line.startswith("ERROR: ")]
        ends[name] = code, message.partition(";")[0]
    assert ends["real"] == ends["stand-in"]
    assert ends["real"][0] == 1
