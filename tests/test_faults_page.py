"""docs/faults.md: every fault that a test or comment cites by number has its row."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
_CITED = re.compile(r"_([bB]\d\d|[rR]\d{1,2})_|\b(B\d\d|R\d{1,2})\b(?!-)")
#: What looks like a citation and is the name of a model or a GPU.
_NO_CITATION = re.compile(r"(?i)deepseek-r1[\w-]*|dsr1\w*|mi\d+\w*")


def cited() -> set[str]:
    files = [*ROOT.glob("tests/**/*.py"), *ROOT.glob("plugins/*/disagg_*/**/*.py"), *ROOT.glob("core/**/*.py")]
    files += ROOT.glob("tests/parity/differences/*.yaml")
    found = set()
    for file in files:
        if file == Path(__file__):
            continue
        for match in _CITED.finditer(_NO_CITATION.sub("", file.read_text(encoding="utf-8"))):
            found.add((match[1] or match[2]).upper())
    return found


def test_each_cited_fault_is_explained_once() -> None:
    page = (ROOT / "docs" / "faults.md").read_text(encoding="utf-8")
    explained = re.findall(r"^\| ([BR]\d+) \|", page, re.MULTILINE)
    assert len(explained) == len(set(explained))
    assert sorted(cited() - set(explained)) == []
