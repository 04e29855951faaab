"""Our plans against what the public launchers run for the same input."""

from __future__ import annotations

from fnmatch import fnmatchcase

import pytest

from tests.parity.case import COMPARED, load, names
from tests.parity.differences import result, table

CASES = names(*COMPARED)


@pytest.mark.parametrize("name", CASES)
def test_plan_equals_the_case_but_for_numbered_faults(name: str) -> None:
    unexplained = result(name).unexplained
    assert not unexplained, "\n" + "\n".join(map(str, unexplained))


@pytest.mark.parametrize("name", CASES)
def test_every_rank_of_the_case_ran(name: str) -> None:
    assert all(rank["exit_code"] == 0 and rank["server"]["argv"] for rank in load(name).data["ranks"])


@pytest.mark.parametrize("engine", COMPARED)
def test_every_entry_of_the_table_is_used_by_each_of_its_patterns(engine: str) -> None:
    explained = [pair for name in names(engine) for pair in result(name).explained]
    unused = [
        f"{entry.number} {entry.item} for {pattern}"
        for entry in table(engine).allowed
        for pattern in entry.cases
        if not any(entry is used and fnmatchcase(found.case, pattern) for found, used in explained)
    ]
    assert not unused


@pytest.mark.parametrize("engine", COMPARED)
def test_the_table_has_the_recorded_size(engine: str) -> None:
    known = table(engine)
    differences = sum(len(result(name).explained) for name in names(engine))
    entries = len(known.allowed) + len(known.refused)
    # A new fault of the reference, or a change of ours that an entry happens to cover: look, then record it.
    assert {"entries": entries, "differences": differences} == dict(known.recorded)
