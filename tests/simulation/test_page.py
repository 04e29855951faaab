"""docs/simulation.md: its table is that of the stand-ins' options, and its command can be planned."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from disagg_run.cli.main import main
from disagg_run.simulation.options import parse_options

PAGE = (Path(__file__).parents[2] / "docs" / "simulation.md").read_text(encoding="utf-8")


def test_the_table_has_every_option_of_the_stand_ins_with_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_options(["--help"], prog="toy", about="A toy.")
    helped = " ".join(capsys.readouterr().out.split())
    rows = dict(re.findall(r"^\| `(--[a-z-]+)[^`]*` \| (.*) \|$", PAGE, re.MULTILINE))
    for option, text in rows.items():
        assert re.search(rf"{option}( \S+)? {re.escape(text)}", helped), option
    assert set(re.findall(r"--[a-z][a-z-]+", helped)) == {*rows, "--help"}


def test_the_command_of_the_page_can_be_planned(capsys: pytest.CaptureFixture[str]) -> None:
    (command,) = re.findall(r"^disagg-run (.*--simulate-opt .*)$", PAGE, re.MULTILINE)
    assert main([*shlex.split(command), "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "--ttft-s 0.5 --tpot-s 0.02 --clock ready --exit-after-s 5 -- " in out
