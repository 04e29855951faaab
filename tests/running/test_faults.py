"""Launches that fail: who is named, how fast all is down, and that nothing is left (the rest: test_fault_matrix.py)."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from disagg_run.planning.document import PlannedProcess, Ready
from disagg_run.running.status import read_status, status_text
from tests.running import matrix
from tests.running.launched import Launched, alive, until
from tests.running.matrix import Cell, run_cell
from tests.running.plans import HTTP, ROUTER, Launch, addresses, command, edges, plan, python, router, server

Starter = Callable[..., Launched]

ESSENTIAL = [
    Cell("prefill", "starting", "exit 0"),
    Cell("decode", "serving", "SIGKILL"),
    Cell("agent of rank 0", "serving", "SIGKILL"),
]


@pytest.mark.parametrize("cell", ESSENTIAL, ids=str)
def test_a_fault_ends_every_rank_names_the_culprit_and_leaves_nothing(cell: Cell, tmp_path: Path) -> None:
    seen = run_cell(cell, tmp_path)
    assert seen.problems == ()


def test_the_matrix_covers_every_kind_phase_and_fault() -> None:
    chosen = matrix.pairwise(matrix.cells())
    assert {cell.target for cell in chosen} == set(matrix.TARGETS)
    assert {cell.phase for cell in chosen} == set(matrix.PHASES)
    assert {cell.fault for cell in chosen} == set(matrix.FAULTS)


def test_B82_followers_are_ended_with_their_head(launch: Starter) -> None:
    first, second = addresses(2)
    head = server("decode-0", first)
    follower = server("decode-0.1", second, head=False, ready=(), ports={}, after=edges("decode-0", until="started"))
    both = plan([(first, [head, router(first, [("decode-0", first)])]), (second, [follower])])
    launched = launch(both)
    launched.serving()
    struck = launched.kill(launched.pid("decode-0"))
    assert launched.end() == 11
    assert time.monotonic() - struck < 4
    assert launched.culprit(1)["process"] == "decode-0"
    assert "decode-0 of rank 0 was killed by SIGKILL while it was needed" in launched.err.read_text()


def test_B89_plan_logs_and_events_are_kept_after_a_failure_and_shown(launch: Starter) -> None:
    asked = Launch(words={"decode-0": ["--say", "the reason is this line", "--exit-after", 0.3, "--code", 7]})
    launched = launch(asked.plan())
    assert launched.end() == 11
    text = launched.err.read_text()
    assert "decode-0 of rank 1 exited with code 7" in text
    assert "last lines of decode-0, rank 1:\n  the reason is this line\n  leaving with 7" in text
    log = launched.run_dir / "logs" / "decode-0.log"
    assert f"whole log: {log}" in text
    assert log.read_text() == "the reason is this line\nleaving with 7\n"
    assert (launched.run_dir / "plan.json").read_text() == launched.plan.to_json()
    status = read_status(launched.run_dir)
    assert status["state"] == "failed"
    assert "exited with code 7" in status_text(status)


@pytest.mark.real
def test_a_killed_guardian_ends_the_launch(launch: Starter) -> None:
    launched = launch(Launch().plan())
    launched.serving()
    struck = launched.kill(launched.guardian(1))
    assert launched.process.wait(20) == 10
    assert time.monotonic() - struck < 6
    launched.check_nothing_left(2)
    assert launched.culprit(0)["message"] == "the guardian of rank 1 is gone"


@pytest.mark.real
def test_guardian_and_agent_killed_at_once_leave_nothing(launch: Starter) -> None:
    launched = launch(Launch().plan())
    launched.serving()
    agent, guardian = launched.agent(1), launched.guardian(1)
    os.kill(guardian, signal.SIGSTOP)  # so that it cannot sweep before it is killed itself
    os.kill(agent, signal.SIGKILL)
    os.kill(guardian, signal.SIGKILL)
    assert launched.end() == 10
    assert launched.culprit(0)["process"] == "agent"


@pytest.mark.real
def test_a_killed_launcher_ends_every_rank(launch: Starter) -> None:
    launched = launch(Launch().plan())
    launched.serving()
    launched.kill(launched.process.pid)
    launched.process.wait()
    launched.check_nothing_left(10)
    assert launched.culprit()["signal"] == "SIGTERM"


@pytest.mark.real
def test_where_the_process_above_the_ranks_is_killed_they_end_in_order(launch: Starter) -> None:
    launched = launch(Launch().plan())
    launched.serving()
    (above,) = psutil.Process(launched.process.pid).children()
    launched.kill(above.pid)
    assert launched.process.wait(30) == 10
    launched.check_nothing_left(2)


def test_B09_a_foreign_answer_on_the_port_is_no_readiness(launch: Starter, tmp_path: Path) -> None:
    """Somebody takes the port between our check and our server's bind, and answers in its place."""
    asked = Launch()
    address = asked.addresses[1]
    # Our server never opens its port; the foreign one serves the same model on it.
    idle = python("decode-0", "server", "import time; time.sleep(60)", ports={"http": HTTP})
    real = asked.plan().process("decode-0")
    asked_plan = plan(
        [
            (asked.addresses[0], [server("prefill-0", asked.addresses[0])]),
            (address, [python_with_ready(idle.argv, real.ready)]),
        ]
    )
    launched = launch(asked_plan)
    launched.pid("decode-0")
    words = [sys.executable, *real.exec[1:]]
    env = {**os.environ, "DISAGG_RUN_NODE_ADDRESS": address}
    with subprocess.Popen(words, env=env, stdout=subprocess.DEVNULL) as foreign:
        try:
            assert launched.process.wait(20) == 13
            told = launched.culprit(0)
            assert told["process"] == "decode-0"
            assert f"port {HTTP} of decode-0 is held on {address} by pid {foreign.pid} of user" in told["message"]
            assert foreign.poll() is None
        finally:
            foreign.kill()
    launched.check_nothing_left()


def python_with_ready(argv: tuple[str, ...], ready: tuple[Ready, ...]) -> PlannedProcess:
    return command("decode-0", "server", *argv, ports={"http": HTTP}, ready=ready)


def test_B47_a_server_that_cannot_bind_is_reported_with_the_holder(launch: Starter, tmp_path: Path) -> None:
    asked = Launch(words={"decode-0": ["--delay", 1.0]})
    launched = launch(asked.plan())
    launched.pid("decode-0")
    with socket.create_server((asked.addresses[1], HTTP)):
        assert launched.process.wait(20) in (11, 13)
        message = launched.culprit()["message"]
    assert f"port {HTTP}" in message
    assert f"by pid {os.getpid()} of user" in message
    launched.check_nothing_left()


@pytest.mark.real
def test_what_a_stranger_opens_on_a_port_of_ours_is_said_and_not_called_left(launch: Starter) -> None:
    spare = 18031
    asked = Launch(fields={"decode-0": {"ports": {"http": HTTP, "spare": spare}}})
    launched = launch(asked.plan())
    launched.serving()
    with socket.create_server((asked.addresses[1], spare)):
        launched.kill(launched.process.pid, signal.SIGTERM)
        assert launched.process.wait(20) == 143
    assert launched.event(1, "teardown.done")["left"] == []
    assert f"port {spare} of decode-0 is held by pid {os.getpid()}" in launched.event(1, "port.foreign")["what"]
    assert "left something behind" not in launched.err.read_text()
    launched.check_nothing_left()


def test_a_server_that_binds_all_addresses_is_told_who_holds_its_port_on_another(launch: Starter) -> None:
    first, other = addresses(2)
    port = 18777  # that no other test uses on any address
    code = f"import socket; socket.create_server(('0.0.0.0', {port}))"
    ready = server("decode-0", first, port=port).ready
    with socket.create_server((other, port)):
        launched = launch(plan([(first, [python("decode-0", "server", code, ports={"http": port}, ready=ready)])]))
        assert launched.process.wait(60) == 11
    message = launched.culprit()["message"]
    assert f"port {port} (http of decode-0) is held on {other} by pid {os.getpid()} of user" in message


@pytest.mark.real
def test_a_router_through_which_nothing_comes_is_no_success(launch: Starter) -> None:
    asked = Launch(words={"router": [f"http://{addresses(1)[0]}:{HTTP}"]})
    launched = launch(asked.plan(), smoke=1, canary_errors_s=0.5, settle_s=0.1)
    assert launched.end() == 14
    assert "no generation came through router" in launched.err.read_text()
    assert "answers 502" in launched.err.read_text()


@pytest.mark.real
def test_a_router_that_refuses_every_generation_is_not_waited_for_to_its_deadline(launch: Starter) -> None:
    asked = Launch(words={"router": [f"http://{addresses(1)[0]}:{HTTP}"]})
    place = f"{asked.addresses[0]}:{ROUTER}"
    proofs = [
        Ready(kind=kind, target=f"http://{place}{path}", timeout_s=600, identity={"listener": "http"})
        for kind, path in (("http", "/health"), ("generation", "/v1/completions"))
    ]
    asked.fields = {"router": {"ready": proofs}}
    launched = launch(asked.plan(), canary_errors_s=1.0, progress_s=0.2)
    assert launched.end() == 14
    assert launched.culprit()["process"] == "router"
    refusal = f"http://{place}/v1/completions answers 502"
    assert f"no generation came through router in 1 s: {refusal}" in launched.culprit()["message"]
    assert f"router (rank 0, started: {refusal}" in launched.text()


@pytest.mark.real
def test_smoke_requests_that_fail_fail_the_run(launch: Starter) -> None:
    launched = launch(Launch(words={"router": ["--fail-streams"]}).plan(), smoke=3, settle_s=0.1)
    assert launched.end() == 15
    assert "3 of 3 smoke requests failed; the first: the stream ended before [DONE]" in launched.err.read_text()
    assert "0 of 3 requests good" in launched.out.read_text()


@pytest.mark.real
def test_a_server_that_does_not_answer_other_nodes_is_named(launch: Starter) -> None:
    """Its own agent's two questions are answered, those of the router's agent are not."""
    launched = launch(Launch(words={"decode-0": ["--gets", 2]}).plan(), reach_s=0.5)
    assert launched.end() == 12
    text = launched.err.read_text()
    assert "decode-0 is ready on its own node, but router on rank 0 cannot use it" in text
    assert "answers 503" in text


def test_a_server_that_says_that_it_is_broken_is_not_waited_for(launch: Starter, tmp_path: Path) -> None:
    asked = Launch(words={"decode-0": ["--core", tmp_path / "core"]})
    base = f"http://{asked.addresses[1]}:{HTTP}"
    proof = Ready(kind="http", target=f"{base}/health", timeout_s=20, identity={"listener": "http"}, broken_status=503)
    asked.fields = {"decode-0": {"ready": [proof]}}
    launched = launch(asked.plan())
    launched.serving()
    killed = launched.kill(int((tmp_path / "core").read_text()))
    assert launched.end() == 11
    assert time.monotonic() - killed < 5
    assert launched.culprit()["process"] == "decode-0"
    said = 'decode-0 of rank 1 says that it is broken: {}/health answers 503 ({{"status": "broken"}})'
    assert launched.culprit()["message"] == said.format(base)


def test_a_setup_that_fails_stops_all_before_servers_start(launch: Starter) -> None:
    asked = Launch()
    code = "import sys; print('no route to host'); sys.exit(2)"
    asked.more = {1: [python("route@1", "setup", code, ready=[Ready(kind="exit", target="", timeout_s=10)])]}
    asked.fields = {"decode-0": {"after": edges("route@1")}}
    launched = launch(asked.plan())
    assert launched.end() == 11
    assert launched.culprit()["process"] == "route@1"
    assert launched.culprit()["lines"] == ["no route to host"]
    assert "decode-0" not in [event.get("process") for event in launched.events(1)]


def test_a_missing_program_and_a_missing_secret_are_named_before_anything_is_left(launch: Starter) -> None:
    first, second = addresses(2)
    missing = launch(plan([(first, [command("prefill-0", "server", "no-such-program")])]))
    secret = launch(plan([(second, [python("prefill-0", "server", "", secrets=("NO_SUCH_SECRET",))])]))
    assert missing.end() == secret.end() == 13
    assert "there is no program 'no-such-program' here" in missing.err.read_text()
    assert "needs the variable 'NO_SUCH_SECRET', which is not set here" in secret.err.read_text()


@pytest.mark.real
def test_a_process_that_lost_its_parent_does_not_outlive_its_agent(launch: Starter, tmp_path: Path) -> None:
    pid_file = tmp_path / "daemon.pid"
    launched = launch(Launch(words={"decode-0": ["--daemon", pid_file]}).plan())
    launched.serving()
    until(pid_file.exists, "the daemon")
    launched.kill(launched.agent(1))
    assert launched.end() == 10
    assert not alive(int(pid_file.read_text()))
