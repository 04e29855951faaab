"""Launches that are ended with their test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from disagg_run.planning.document import LaunchPlan
from tests.running.launched import Launched


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
