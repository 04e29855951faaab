"""Signals that come from outside: processes that are stopped, terminals that close, readers that go away."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.running.launched import DRIVE, Agent, Launched, alive, star, until
from tests.running.plans import Launch, addresses, plan, python

pytestmark = pytest.mark.real

Starter = Callable[..., Launched]


def state(pid: int) -> str:
    return psutil.Process(pid).status()


def await_stop(pid: int) -> None:
    """Returns once a signal has really stopped a process."""
    until(lambda: state(pid) == psutil.STATUS_STOPPED, f"the stop of {pid}")


def test_a_stopped_agent_is_named_as_stopped_and_not_as_killed(launch: Starter) -> None:
    launched = launch(Launch().plan())
    launched.serving()
    launched.kill(launched.agent(1), signal.SIGSTOP)
    assert launched.end() == 10
    told = launched.result(1)["culprit"]
    assert told["message"] == "the agent of rank 1 was stopped by SIGSTOP for 3 s, so it was ended"
    assert told["signal"] == "SIGSTOP"
    assert "the agent of rank 1 was stopped by SIGSTOP for 3 s, so it was ended" in launched.err.read_text()
    assert "SIGKILL" not in launched.err.read_text()


def test_a_stopped_guardian_is_continued_and_the_run_ends_as_it_should(launch: Starter) -> None:
    launched = launch(Launch().plan())
    launched.serving()
    above = psutil.Process(launched.process.pid).children()[0].pid
    for pid, who in ((launched.guardian(1), "a guardian"), (above, "the process above the ranks")):
        launched.kill(pid, signal.SIGSTOP)
        remark = f"{who} was stopped by SIGSTOP; it is continued"
        until(lambda remark=remark: remark in launched.err.read_text(), remark)
        until(lambda pid=pid: state(pid) != psutil.STATUS_STOPPED, "its going on")
    launched.kill(launched.process.pid, signal.SIGTERM)
    assert launched.end() == 143


def test_a_launcher_that_is_stopped_and_continued_goes_on(launch: Starter) -> None:
    launched = launch(Launch().plan())
    launched.serving()
    launched.kill(launched.process.pid, signal.SIGSTOP)
    await_stop(launched.process.pid)
    launched.kill(launched.process.pid, signal.SIGTERM)  # waits until it goes on
    assert alive(launched.pid("decode-0"))
    launched.kill(launched.process.pid, signal.SIGCONT)
    assert launched.end() == 143


def test_a_guardian_that_its_terminal_stopped_does_not_keep_an_ended_run(agent: Agent) -> None:
    """Ctrl-Z stops the guardian alone; nobody would see that its agent has ended.

    Ctrl-Z's own signal stops nothing in a process group that no shell looks after, as CI may be.
    """
    asked = Launch().plan()
    first, second = [agent(asked, rank, *star(asked)) for rank in (0, 1)]
    assert first.stdout is not None
    until(lambda: "serving" in first.stdout.readline(), "serving")  # type: ignore[union-attr]
    first.send_signal(signal.SIGSTOP)
    await_stop(first.pid)
    second.send_signal(signal.SIGTERM)
    assert (second.wait(20), first.wait(20)) == (143, 143)


def test_a_guardian_that_stays_stopped_is_continued_by_its_agent(agent: Agent) -> None:
    """Stopped, it would not end what its agent leaves that is killed."""
    first = agent(plan([(addresses(1)[0], [python("prefill-0", "server", "import signal; signal.pause()")])]), 0)
    assert first.stdout is not None
    until(lambda: "workers are ready" in first.stdout.readline(), "serving")  # type: ignore[union-attr]
    first.send_signal(signal.SIGSTOP)
    await_stop(first.pid)
    until(lambda: state(first.pid) != psutil.STATUS_STOPPED, "its going on", 10)
    first.send_signal(signal.SIGTERM)
    _, err = first.communicate(timeout=20)
    assert first.returncode == 143
    assert "guardian.continued" in err


def test_a_closed_terminal_ends_the_run_in_order_with_129(launch: Starter) -> None:
    launched = launch(Launch().plan())
    launched.serving()
    launched.kill(launched.process.pid, signal.SIGHUP)
    assert launched.end() == 129
    for rank in (0, 1):
        assert launched.culprit(rank)["signal"] == "SIGHUP"
        assert launched.event(rank, "teardown.done")["left"] == []


def test_a_lost_connection_ends_a_ranks_agent_and_the_others_with_129(agent: Agent) -> None:
    asked = Launch().plan()
    first, second = [agent(asked, rank, *star(asked)) for rank in (0, 1)]
    assert first.stdout is not None
    until(lambda: "serving" in first.stdout.readline(), "serving")  # type: ignore[union-attr]
    second.send_signal(signal.SIGHUP)
    assert (first.wait(20), second.wait(20)) == (129, 129)


def test_a_run_that_was_started_to_outlive_its_terminal_does(tmp_path: Path) -> None:
    """`nohup` starts programs with SIGHUP ignored."""
    plan_file = tmp_path / "p.json"
    plan_file.write_text(Launch().plan().to_json())
    words = ["nohup", sys.executable, str(DRIVE), str(plan_file), str(tmp_path / "run")]
    with (tmp_path / "out").open("w") as out:
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True)
    try:
        until(lambda: "serving" in (tmp_path / "out").read_text(), "serving")
        above = psutil.Process(process.pid).children()[0]
        for pid in (process.pid, above.pid, *(each.pid for each in above.children(recursive=True))):
            if "server.py" not in " ".join(psutil.Process(pid).cmdline()):
                os.kill(pid, signal.SIGHUP)
        process.terminate()
        assert process.wait(20) == 143, "the first signal counts, and that was not SIGHUP"
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("streams", ["stdout", "both"])
def test_readers_that_are_gone_do_not_fail_a_run(streams: str, tmp_path: Path) -> None:
    """`disagg-run … | head`, and a terminal's logger that died: what was asked for is the run."""
    plan_file = tmp_path / "p.json"
    plan_file.write_text(Launch().plan().to_json())
    words = [sys.executable, str(DRIVE), str(plan_file), str(tmp_path / "run"), "smoke=1"]
    out, into = os.pipe()
    os.close(out)
    with (tmp_path / "kept").open("w") as kept:
        gone = {name: into if streams in (name, "both") else kept for name in ("stdout", "stderr")}
        done = subprocess.run(words, **gone, timeout=60)  # type: ignore[call-overload]
    os.close(into)
    assert done.returncode == 0
    assert (tmp_path / "run" / "smoke.json").exists()
    text = (tmp_path / "kept").read_text()
    assert "Traceback" not in text
    assert "BrokenPipe" not in text


def test_an_agent_that_does_not_end_when_told_to_is_killed_and_called_that() -> None:
    code = """
import signal, sys
from disagg_run.running.guardian import guard
def agent():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print("ready", flush=True)
    while True:
        signal.pause()
sys.exit(guard(agent, lambda killed: print(killed.signal, killed.how, flush=True), patience_s=0.3))
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as guardian:
        assert guardian.stdout is not None
        assert guardian.stdout.readline() == "ready\n"
        guardian.terminate()
        assert guardian.stdout.readline() == "SIGKILL had not ended 0.3 s after SIGTERM, so it was killed\n"
        assert guardian.wait(20) == 10
