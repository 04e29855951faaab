"""Every command of docs/explain.md prints what the page shows."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from disagg_run.cli.main import main

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "explain.md").read_text(encoding="utf-8")
SHOWN = re.findall(r"```console\n\$ disagg-run (.*)\n((?:.*\n)*?)```", PAGE)


def test_the_page_answers_ten_questions_at_least() -> None:
    assert len(SHOWN) >= 10


@pytest.mark.parametrize(("command", "output"), SHOWN, ids=[command for command, _ in SHOWN])
def test_a_command_of_the_page_prints_what_it_shows(
    command: str, output: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    assert main(shlex.split(command)) == 0
    assert capsys.readouterr().out == output
