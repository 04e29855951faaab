"""The run files of examples/: each plans without a remark, and stands in examples/README.md with what it shows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.example_plans import EXAMPLES, planned

PAGE = (EXAMPLES / "README.md").read_text(encoding="utf-8")
SECTIONS = {part.partition("\n")[0]: part for part in PAGE.split("\n## ")[1:]}
LINK = re.compile(r"\[([^\]]+)\]\(([^)]+)\)")


def rows(section: str) -> dict[str, str]:
    """What a section says of each feature."""
    cells = [line.strip("| ").split(" | ") for line in SECTIONS[section].splitlines() if line.startswith("| ")]
    return dict(cells[2:])


def test_the_page_has_every_run_file_and_nothing_else() -> None:
    assert {target for _, target in LINK.findall(PAGE)} == {path.name for path in EXAMPLES.glob("*.yaml")}
    assert all(f"{name}.yaml" == target for name, target in LINK.findall(PAGE))


@pytest.mark.parametrize(("section", "mark"), [("vLLM", "vllm"), ("ATOM", "atom"), ("SGLang", "sglang")])
def test_a_section_has_its_own_engine_s_run_files(section: str, mark: str) -> None:
    names = {target for _, target in LINK.findall(SECTIONS[section])}
    assert names == {path.name for path in EXAMPLES.glob(f"*{mark}*.yaml")}


def test_each_feature_is_shown_or_said_to_be_missing_for_each_engine() -> None:
    assert list(rows("vLLM")) == list(rows("ATOM")) == list(rows("SGLang"))
    assert len(rows("vLLM")) >= 20
    for section in SECTIONS:
        for feature, files in rows(section).items():
            # A run file, or a word on why there is none.
            assert LINK.search(files) or files.startswith(("none", "all others: ")), (section, feature)


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.stem)
def test_a_run_file_begins_with_what_it_shows_and_how_it_is_used(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    head = lines[: next(number for number, line in enumerate(lines) if not line.startswith("#"))]
    assert len(head) >= 3
    assert any(line.startswith("#   disagg-run ") and f"examples/{path.name}" in line for line in head)


@pytest.mark.parametrize("name", sorted(path.stem for path in EXAMPLES.glob("*.yaml")))
@pytest.mark.parametrize("simulate", [False, True])
def test_a_run_file_plans_without_a_remark(name: str, simulate: bool) -> None:
    assert planned(name, simulate=simulate).warnings == ()
