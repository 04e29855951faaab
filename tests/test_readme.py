"""Every console example of README.md and of docs/master-config.md prints what the page shows."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

import pytest

from disagg_run.cli.main import main
from disagg_run.spec.options import OPTIONS

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("README.md", "docs/master-config.md")


def shown(page: str) -> list[tuple[str, str]]:
    """The commands of a page, each with what the page says it prints."""
    blocks = re.findall(r"```console\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.S)
    return [tuple(each) for block in blocks for each in re.findall(r"\$ disagg-run (.*)\n((?:(?!\$ ).*\n)*)", block)]


SHOWN = [each for page in PAGES for each in shown(page)]


@pytest.mark.parametrize("page", PAGES)
def test_a_page_has_examples_of_commands_and_refusals(page: str) -> None:
    assert len(shown(page)) >= 5
    assert any(output.startswith("disagg-run: error: ") for _, output in shown(page))


def test_the_entry_that_a_page_shows_is_of_the_file_that_its_examples_read() -> None:
    page = (ROOT / "docs" / "master-config.md").read_text(encoding="utf-8")
    (entry,) = re.findall(r"```yaml\n(.*?)```", page, re.S)
    assert entry in (ROOT / "examples" / "master-config" / "master-config.yaml").read_text(encoding="utf-8")


@pytest.mark.parametrize(("command", "output"), SHOWN, ids=[command[:90] for command, _ in SHOWN])
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
