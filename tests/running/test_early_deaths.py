"""Agents, guardians and the process above them that are killed before a run is up: known at once, and by name."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from disagg_run.running.rundir import RunDir, culprit_of
from disagg_run.running.status import read_status
from tests.running.launched import Agent, Launched, processes_of, star, until
from tests.running.plans import Launch

pytestmark = pytest.mark.real

Starter = Callable[..., Launched]

EARLY = Path(__file__).with_name("early.py")
#: For the start of a rank's processes on a machine that is busy with other tests, in seconds.
START_S = 6.0


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("whom", ["agent", "guardian"])
def test_what_is_killed_as_it_begins_ends_the_other_ranks_at_once_and_is_named(
    tmp_path: Path, whom: str, rank: int
) -> None:
    run_dir, file = tmp_path / "run", tmp_path / "plan.json"
    file.write_text(Launch(decodes=2).plan().to_json())
    began = time.monotonic()
    words = [sys.executable, str(EARLY), str(file), str(run_dir), str(rank), whom]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert time.monotonic() - began < START_S
    assert done.returncode == 10
    culprit = culprit_of(RunDir(path=run_dir))
    assert culprit is not None
    assert culprit.message == f"the {whom} of rank {rank} was killed by SIGKILL"
    for other in {0, 1, 2} - {rank}:
        own = RunDir(path=run_dir).culprit(other)
        assert own is not None
        assert own.exit_code == 10
        # One that comes to rank 0 when that has ended already can say no more than that it is gone.
        assert own.rank == rank or (own.rank, own.process) == (0, "agent")
    assert read_status(run_dir)["state"] == "failed"
    assert processes_of(run_dir) == []


@pytest.mark.parametrize("moment", ["at once", "with guardians", "with agents"])
def test_the_process_above_the_ranks_is_named_whenever_it_is_killed(launch: Starter, moment: str) -> None:
    launched = launch(Launch().plan())
    above = until(psutil.Process(launched.process.pid).children, "the process above the ranks")[0]
    if moment == "with guardians":
        until(above.children, "a guardian")
    elif moment == "with agents":
        launched.agent(1)
    struck = launched.kill(above.pid)
    assert launched.process.wait(30) == 10
    assert time.monotonic() - struck < 4
    launched.check_nothing_left(2)
    assert "the process above the ranks was killed by SIGKILL, and every rank was ended" in launched.err.read_text()
    assert read_status(launched.run_dir)["state"] == "failed"


def test_a_death_is_told_once(launch: Starter) -> None:
    launched = launch(Launch().plan())
    launched.serving()
    launched.kill(launched.agent(1))
    assert launched.end() == 10
    assert launched.err.read_text().count("the agent of rank 1 was killed by SIGKILL") == 1


def test_an_agent_that_is_killed_before_it_joined_is_known_to_rank_0_without_a_launcher(
    agent: Agent, tmp_path: Path
) -> None:
    """Its guardian finds rank 0 by the plan file and the token."""
    asked = Launch().plan()
    first = agent(asked, 0, *star(asked))
    until(lambda: _listens(asked.ranks[0].node.address), "rank 0's socket")
    second = agent(asked, 1, *star(asked))
    body = until(psutil.Process(second.pid).children, "its agent")[0]
    body.kill()
    assert (second.wait(20), first.wait(20)) == (10, 10)
    assert second.stderr is not None
    assert "the agent of rank 1 was killed by SIGKILL" in second.stderr.read()
    culprit = RunDir(path=tmp_path / "rank0").culprit(0)
    assert culprit is not None
    assert (culprit.rank, culprit.process) == (1, "agent")


def _listens(address: str) -> bool:
    return any(
        each.laddr and each.laddr.ip == address and each.status == psutil.CONN_LISTEN
        for each in psutil.net_connections("tcp")
    )
