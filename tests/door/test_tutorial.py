"""The tutorial's code is the code of the outside plugins that are built, installed and run."""

from __future__ import annotations

import re
from pathlib import Path

from disagg_run import catalogue

TREE = Path(__file__).parents[2]
PAGE = TREE / "docs" / "writing-a-plugin.md"
BLOCK = re.compile(r"<!-- (\S+) -->\n```\w+\n(.*?)```\n", re.DOTALL)


def blocks() -> dict[str, list[str]]:
    """The page's code by the file that it is said to be from."""
    found: dict[str, list[str]] = {}
    for path, text in BLOCK.findall(PAGE.read_text(encoding="utf-8")):
        found.setdefault(path, []).append(text)
    return found


def test_the_code_blocks_of_each_file_make_up_the_file() -> None:
    files = {path: parts for path, parts in blocks().items() if path != "example"}
    names = {"pyproject.toml", "plugin.py", "toy-server.json", "server_stand_in.py", "toy_link.py", "rack_site.py"}
    assert {Path(path).name for path in files} == names
    for path, parts in files.items():
        assert "\n\n".join(parts) == (TREE / path).read_text(encoding="utf-8"), f"{path} and the tutorial differ"


def test_every_code_block_is_from_a_file_or_is_run_by_a_test() -> None:
    page = PAGE.read_text(encoding="utf-8")
    named = sum(len(parts) for parts in blocks().values())
    consoles = page.count("```console\n")
    assert page.count("```") == 2 * (named + consoles)
    assert consoles == 1
    assert len(blocks()["example"]) == 1


def test_every_key_of_a_catalogue_is_explained() -> None:
    keys = re.findall(r"^``(\w+)``  ", catalogue.__doc__ or "", re.MULTILINE)
    rows = "".join(line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| `"))
    assert len(keys) > 15
    for key in keys:
        assert f"`{key}`" in rows, key
