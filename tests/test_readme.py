"""Every console example of README.md prints what the page shows."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

import pytest

from disagg_run.cli.main import main
from disagg_run.spec.options import OPTIONS

ROOT = Path(__file__).resolve().parents[1]
BLOCKS = re.findall(r"```console\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.S)
SHOWN = [tuple(each) for block in BLOCKS for each in re.findall(r"\$ disagg-run (.*)\n((?:(?!\$ ).*\n)*)", block)]


def test_the_page_has_examples_of_plan_explain_and_refusals() -> None:
    assert len(SHOWN) >= 5


@pytest.mark.parametrize(("command", "output"), SHOWN, ids=[command[:60] for command, _ in SHOWN])
def test_a_command_of_the_page_prints_what_it_shows(
    command: str, output: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    for name in {name for option in OPTIONS for name in option.contract} & os.environ.keys():
        monkeypatch.delenv(name)
    code = main(shlex.split(command))
    said = capsys.readouterr()
    assert (code != 0) is output.startswith("disagg-run: error: ")
    # A line of three dots stands for lines that are left out.
    parts = [re.escape(part) for part in output.split("…\n") if part] if "\n…\n" in output else [re.escape(output)]
    assert re.fullmatch("(?:.*\n)+".join(parts), said.err if code else said.out)
