"""The main job: a plan of every engine, run on this machine with stand-ins, through the door that users take."""

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

import pytest

from disagg_run import LaunchPlan, LaunchSpec, RoleSpec, build_host, plan
from tests.running.launched import Launched, until

pytestmark = pytest.mark.usefixtures("this_machine")

ATOM = LaunchSpec(engine="atom-disagg", model="DeepSeek-V4-Pro", prefill=RoleSpec(workers=2), simulate=True)


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Callable[[LaunchPlan], Launched]]:
    started: list[Launched] = []

    def start(made: LaunchPlan) -> Launched:
        started.append(Launched(made, tmp_path / f"launch{len(started)}"))
        return started[-1]

    yield start
    for each in started:
        each.stop()


def test_the_readmes_job_plans_starts_gates_smokes_and_ends_with_0(tmp_path: Path) -> None:
    words = ["--engine", "atom-disagg", "--model", "DeepSeek-V4-Pro", "--prefill", "2", "--decode", "1"]
    words += ["--simulate", "--smoke", "16"]
    begin = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "disagg_run", *words, "--run-dir", str(tmp_path / "run")],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert time.monotonic() - begin < 20
    assert "16 of 16 requests good, 8 at a time" in done.stdout
    assert "time to first token" in done.stdout
    assert "rank 2" in done.stdout  # the plan's table comes first
    run = json.loads((tmp_path / "run" / "run.json").read_text())
    assert set(run["processes"]) == {"prefill-0", "prefill-1", "decode-0", "router"}
    for name, process in run["processes"].items():
        assert not Path(f"/proc/{process['pid']}/cmdline").exists(), f"{name} was left behind"


def test_every_process_gets_the_plans_very_argv_and_environment(launch: Callable[[LaunchPlan], Launched]) -> None:
    made = plan(ATOM, host=build_host())
    launched = launch(made)
    launched.serving()
    for rank in made.ranks:
        for process in rank.processes():
            pid = launched.pid(process.name)
            argv = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")[:-1]
            assert argv[-len(process.argv) :] == list(process.argv)
            words = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")[:-1]
            env = dict(word.split("=", 1) for word in words)
            assert {name: env.get(name) for name in process.env} == dict(process.env)
            for name, elements in process.env_prepend.items():
                assert env[name].split(":")[: len(elements)] == list(elements)
                assert "" not in env[name].split(":")
    os.kill(launched.process.pid, signal.SIGINT)
    assert launched.end() == 130


def test_the_printed_curl_line_works_as_it_stands(launch: Callable[[LaunchPlan], Launched]) -> None:
    launched = launch(plan(ATOM, host=build_host()))
    url = launched.serving()["url"]
    line = next(line for line in launched.text().splitlines() if line.strip().startswith("curl "))
    words = shlex.split(line)
    request = urllib.request.Request(
        next(word for word in words if word.startswith("http")),
        data=words[words.index("-d") + 1].encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=10) as answer:
        assert json.load(answer)["choices"][0]["text"]
    assert url in line
    os.kill(launched.process.pid, signal.SIGTERM)
    assert launched.end() == 143


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_that_comes_while_the_ranks_are_still_being_made_ends_the_run_in_order(
    signum: int, code: int, launch: Callable[[LaunchPlan], Launched]
) -> None:
    launched = launch(plan(ATOM, host=build_host()))
    until(lambda: "run directory" in launched.err.read_text(), "the run directory")
    os.kill(launched.process.pid, signum)
    assert launched.end(15) == code


def test_a_run_directory_that_holds_a_run_is_not_used_again(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text("{}")
    words = ["--engine", "atom-disagg", "--model", "DeepSeek-V4-Pro", "--simulate", "--smoke", "1"]
    done = subprocess.run(
        [sys.executable, "-m", "disagg_run", *words, "--run-dir", str(tmp_path)], capture_output=True, text=True
    )
    assert done.returncode == 10
    assert "already holds a run: name another with --run-dir" in done.stderr


def test_a_launch_whose_table_nobody_reads_is_launched(tmp_path: Path) -> None:
    """What comes of it is the launch's own end, here at a used run directory, and not that of `| head`."""
    (tmp_path / "plan.json").write_text("{}")
    words = ["--engine", "atom-disagg", "--model", "DeepSeek-V4-Pro", "--simulate", "--run-dir", str(tmp_path)]
    out, into = os.pipe()
    os.close(out)
    done = subprocess.run([sys.executable, "-m", "disagg_run", *words], stdout=into, stderr=subprocess.PIPE, text=True)
    os.close(into)
    assert done.returncode == 10
    assert "already holds a run" in done.stderr


@pytest.mark.real
@pytest.mark.parametrize("victim", ["prefill-1", "decode-0", "router"])
def test_a_killed_server_ends_the_run_in_seconds_by_name_and_leaves_nothing(
    victim: str, launch: Callable[[LaunchPlan], Launched]
) -> None:
    launched = launch(plan(ATOM, host=build_host()))
    launched.serving()
    killed = launched.kill(launched.pid(victim))
    assert launched.end() == 11
    assert time.monotonic() - killed < 8
    assert f"{victim} of rank" in launched.err.read_text()
    assert "SIGKILL" in launched.err.read_text()
