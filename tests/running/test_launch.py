"""Whole launches that go well: order, gates, canary, smoke test, teardown, what is kept."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import attrs
import pytest

from disagg_run.errors import RunError
from disagg_run.planning.document import Group, PlannedContainer, RankPlan, Ready
from disagg_run.running.launch import run
from disagg_run.running.status import read_status, status_text
from disagg_run.spec.model import Node
from tests.running.launched import Launched, alive, until
from tests.running.plans import HTTP, JOIN, ROUTER, Launch, addresses, edges, plan, python, router, server

Starter = Callable[..., Launched]


def times(launched: Launched, ranks: int) -> dict[tuple[str, str], str]:
    """When each process was started and ready, by event and process."""
    return {
        (event["event"].removeprefix("process."), event["process"]): event["timestamp"]
        for rank in range(ranks)
        for event in launched.events(rank)
        if event["event"] in ("process.started", "process.ready")
    }


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launched]:
    """A launch of three ranks that sent nine requests and ended with 0."""
    asked = Launch(decodes=2, words={"prefill-0": ["--delay", 0.5]})
    launched = Launched(asked.plan(), tmp_path_factory.mktemp("finished"), smoke=9)
    assert launched.end() == 0, launched.text()
    yield launched
    launched.stop()


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launched]:
    """A launch that serves; that it ends with Ctrl-C's code and leaves nothing is looked at after its last test."""
    fields = {"env": {"TOY": "a b"}, "env_prepend": {"PATH": ("/toy/bin",)}, "unset": ("HOME",)}
    launched = Launched(Launch(fields={"decode-0": fields}).plan(), tmp_path_factory.mktemp("serving"))
    launched.serving()
    yield launched
    launched.kill(launched.process.pid, signal.SIGINT)
    assert launched.end() == 130
    assert launched.culprit()["signal"] == "SIGINT"
    launched.stop()


def test_a_launch_starts_in_order_smokes_prints_figures_and_leaves_nothing(finished: Launched) -> None:
    at = times(finished, 3)
    assert at["started", "router"] > max(at["ready", name] for name in ("prefill-0", "decode-0", "decode-1"))
    assert "9 of 9 requests good" in finished.out.read_text()
    figures = json.loads((finished.run_dir / "smoke.json").read_text())
    assert figures["requests"] == 9
    assert figures["ms"]["time to first token"]["p99"] > 0
    assert [finished.result(rank)["exit_code"] for rank in range(3)] == [0, 0, 0]


def test_the_run_directory_keeps_plan_events_logs_and_no_secret_after_success(finished: Launched) -> None:
    kept = {str(path.relative_to(finished.run_dir)) for path in finished.run_dir.rglob("*") if path.is_file()}
    assert {"plan.json", "run.json", "events.rank0.jsonl", "events.rank1.jsonl"} <= kept
    assert {"logs/prefill-0.log", "logs/decode-0.log", "logs/router.log"} <= kept
    run_json = json.loads((finished.run_dir / "run.json").read_text())
    assert run_json["plan_digest"] == finished.plan.digest
    assert run_json["processes"]["decode-0"]["start"] > 0
    assert set(run_json["agents"]) == {"0", "1", "2"}
    everything = b"".join((finished.run_dir / name).read_bytes() for name in kept)
    assert b"TOKEN" not in everything
    assert "token" not in run_json


def test_the_printed_curl_line_works_as_it_stands(serving: Launched) -> None:
    line = until(lambda: next((each for each in serving.out.read_text().split("\n") if "curl" in each), ""), "curl")
    words = shlex.split(line)
    request = urllib.request.Request(
        words[words.index("-sS") + 1], words[words.index("-d") + 1].encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=5) as answer:
        assert json.load(answer)["choices"][0]["text"]
    assert read_status(serving.run_dir)["state"] == "serving"
    assert "serving at http://" in status_text(read_status(serving.run_dir))


def test_B16_the_pid_is_the_servers_own_with_a_group_and_session_of_its_own(serving: Launched) -> None:
    """That the group and its port are gone after teardown is looked at by every launch's end."""
    pid = serving.pid("prefill-0")
    assert os.getpgid(pid) == os.getsid(pid) == pid
    assert os.readlink(f"/proc/{pid}/fd/1") == str(serving.run_dir / "logs" / "prefill-0.log")
    assert f"server {pid} starts" in (serving.run_dir / "logs" / "prefill-0.log").read_text()


def test_environment_of_a_process_is_the_plans_and_has_no_secret_of_ours(serving: Launched) -> None:
    raw = Path(f"/proc/{serving.pid('decode-0')}/environ").read_bytes().split(b"\0")
    env = dict(os.fsdecode(each).partition("=")[::2] for each in raw if each)
    assert env["TOY"] == "a b"
    assert env["PATH"].startswith("/toy/bin:")
    assert "HOME" not in env
    assert env["DISAGG_RUN_NODE_ADDRESS"] == serving.plan.ranks[1].node.address
    assert not [name for name in env if "TOKEN" in name]


@pytest.mark.real
def test_setup_ends_and_services_are_ready_before_servers_start(launch: Starter, tmp_path: Path) -> None:
    asked = Launch()
    done = tmp_path / "done"
    code = f"import time; time.sleep(0.3); open({str(done)!r}, 'w')"
    setup = python("route", "setup", code, ready=[Ready(kind="exit", target="", timeout_s=10)])
    first = asked.addresses[0]
    accepts = Ready(kind="tcp", target=f"{first}:18030", timeout_s=10, identity={"listener": "http"})
    store = server("store", first, "--delay", 0.3, port=18030, kind="service", after=edges("route"), ready=(accepts,))
    asked.more = {0: [setup, store]}
    asked.fields = {name: {"after": edges("route", "store")} for name in ("prefill-0", "decode-0")}
    generates = Ready(kind="generation", target=f"http://{first}:{ROUTER}/v1/completions", timeout_s=10)
    asked.fields["router"] = {"ready": (generates,)}
    launched = launch(asked.plan(), smoke=1)
    assert launched.end() == 0
    at = times(launched, 2)
    assert at["started", "store"] > launched.event(0, "process.exited", process="route")["timestamp"]
    assert min(at["started", "prefill-0"], at["started", "decode-0"]) > at["ready", "store"]
    ends = [event["process"] for event in launched.events(0) if event["event"] == "process.exited"]
    assert ends == ["route", "router", "prefill-0", "store"], "torn down in reverse order"


@pytest.mark.real
def test_what_is_waited_for_is_said_as_plain_lines(launch: Starter) -> None:
    asked = Launch(words={"decode-0": ["--delay", 1.5]})
    launched = launch(asked.plan(), smoke=1, progress_s=0.4)
    assert launched.end() == 0
    address = asked.addresses[1]
    line = next(line for line in launched.err.read_text().split("\n") if " waiting for " in line and "decode-0" in line)
    assert f"decode-0 (rank 1, started, to prove http http://{address}:{HTTP}/health)" in line
    assert "router (rank 0, not started)" in line


def test_B80_a_follower_waits_for_the_heads_join_port_and_not_for_its_readiness(launch: Starter) -> None:
    """The head is ready only long after its join port opened; the follower starts in between."""
    first, second = addresses(2)
    head = server("decode-0", first, "--join-port", JOIN, "--delay", 1.0, ports={"http": HTTP, "join": JOIN})
    follower = server("decode-0.1", second, ready=(), ports={}, head=False, after=edges("decode-0", until="listening"))
    launched = launch(plan([(first, [head, router(first, [("decode-0", first)])]), (second, [follower])]), smoke=1)
    assert launched.end() == 0
    at = times(launched, 2)
    assert at["started", "decode-0"] < at["started", "decode-0.1"] < at["ready", "decode-0"]


def test_B11_nothing_is_sent_before_every_worker_is_ready_and_a_generation_came_through(launch: Starter) -> None:
    """The router alone answers healthy at once; prefill is slow."""
    asked = Launch(words={"prefill-0": ["--delay", 1.0]}, fields={"router": {"after": ()}})
    launched = launch(asked.plan(), smoke=1)
    assert launched.end() == 0
    events = [event["event"] for event in launched.events(0)]
    at = times(launched, 2)
    assert at["ready", "router"] < at["ready", "prefill-0"]
    passed = next(event for event in launched.events(0) if event["event"] == "canary.passed")
    assert passed["timestamp"] > at["ready", "prefill-0"]
    assert events.index("canary.passed") < events.index("run.serving")


def test_B17_the_exit_code_is_the_workloads_not_the_clean_ups(launch: Starter) -> None:
    asked = Launch()
    asked.more = {0: [python("bench", "workload", "print('benchmark says no'); raise SystemExit(3)")]}
    launched = launch(asked.plan())
    assert launched.end() == 15
    for rank in (0, 1):
        assert launched.culprit(rank)["process"] == "bench"
        assert launched.culprit(rank)["message"] == "bench exited with code 3"
    assert "benchmark says no" in launched.culprit()["lines"]


@pytest.mark.real
def test_a_stubborn_server_and_a_daemon_that_left_its_session_are_ended(launch: Starter, tmp_path: Path) -> None:
    pid_file = tmp_path / "daemon.pid"
    asked = Launch(words={"decode-0": ["--ignore-term", "--daemon", pid_file]})
    launched = launch(asked.plan(), smoke=1, grace_s=0.5)
    assert launched.end() == 0
    assert not alive(int(pid_file.read_text()))
    assert launched.event(1, "process.killed")["process"] == "decode-0"


@pytest.mark.real
def test_a_second_ctrl_c_cuts_the_grace_short(launch: Starter) -> None:
    launched = launch(Launch(words={"decode-0": ["--ignore-term"]}).plan(), grace_s=60)
    launched.serving()
    struck = launched.kill(launched.process.pid, signal.SIGINT)
    launched.event(0, "process.exited", process="prefill-0")
    until(lambda: time.monotonic() - struck > 0.8, "a moment, so that it is a second one")
    launched.kill(launched.process.pid, signal.SIGINT)
    assert launched.end() == 130
    assert time.monotonic() - struck < 10


def test_B84_a_foreign_process_with_the_same_command_line_is_not_touched(launch: Starter) -> None:
    asked = Launch()
    words = [sys.executable, *asked.plan().process("decode-0").exec[1:]]
    env = {**os.environ, "DISAGG_RUN_NODE_ADDRESS": addresses(1)[0]}
    with subprocess.Popen(words, env=env, stdout=subprocess.DEVNULL) as foreign:
        launched = launch(asked.plan(), smoke=1)
        assert launched.end() == 0
        assert foreign.poll() is None
        foreign.kill()


def test_a_log_flood_blocks_no_server_and_the_console_says_what_it_leaves_out(launch: Starter) -> None:
    launched = launch(Launch(words={"decode-0": ["--flood", 100]}).plan())
    launched.serving()
    agent = launched.agent(1)
    before = _rss(agent)
    log = launched.run_dir / "logs" / "decode-0.log"
    size = log.stat().st_size
    start = time.monotonic()
    until(lambda: log.stat().st_size > size + 50_000_000, "50 MB of log")
    assert time.monotonic() - start < 5
    assert _rss(agent) - before < 10_000_000
    launched.kill(launched.process.pid, signal.SIGTERM)
    assert launched.end() == 143
    assert "bytes are not shown here" in launched.err.read_text()
    assert launched.err.stat().st_size < 3_000_000


def _rss(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def ranked(groups: list[Group]) -> RankPlan:
    return RankPlan(rank=0, node=Node(address="127.0.0.1"), groups=groups)


def test_a_plan_without_nodes_or_with_other_machines_is_refused_with_the_remedy() -> None:
    with pytest.raises(RunError, match=r"not bound to nodes.*--simulate"):
        run(plan([("192.0.2.1", [])], bound=False, simulated=False))
    in_image = [Group(container=PlannedContainer(image="toy:1"), processes=[])]
    contained = attrs.evolve(plan([("127.0.0.1", [])], simulated=False), ranks=[ranked(in_image)])
    with pytest.raises(RunError, match=r"belong into containers of toy:1"):
        run(contained)
    with pytest.raises(RunError, match=r"not this machine: 192\.0\.2\.7.*disagg-run agent"):
        run(plan([("192.0.2.7", [])], simulated=False))
