"""Launches that are ended with their test."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from disagg_run.planning.document import LaunchPlan
from tests.running.launched import Agent, Launched


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Callable[..., Launched]]:
    """Starts a plan: ``launch(plan, smoke=8, grace_s=1.0)``."""
    started: list[Launched] = []

    def start(plan: LaunchPlan, **settings: float) -> Launched:
        started.append(Launched(plan, tmp_path / f"launch{len(started)}", **settings))
        return started[-1]

    yield start
    for each in started:
        each.stop()


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    """Starts an agent: ``agent(plan, rank, "--smoke", "1")``; the run directory is ``tmp_path / rankN``."""
    started: list[subprocess.Popen[str]] = []
    secret = tmp_path / "token"
    secret.write_text("0123456789abcdef0123\n")
    secret.chmod(0o600)

    def start(asked: LaunchPlan, rank: int, *words: str, token: str = "") -> subprocess.Popen[str]:
        file = tmp_path / f"plan{len(started)}.json"
        file.write_text(asked.to_json())
        argv = ["--plan", str(file), "--rank", str(rank), "--run-dir", str(tmp_path / f"rank{rank}")]
        argv += [] if token else ["--token-file", str(secret)]
        started.append(
            subprocess.Popen(
                [sys.executable, "-m", "disagg_run", "agent", *argv, *words],
                env={**os.environ, "DISAGG_RUN_TOKEN": token},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
        return started[-1]

    yield start
    for each in started:
        if each.poll() is None:
            each.terminate()
        each.communicate(timeout=30)
