"""The pairwise cover of process kind, phase and fault, and some more, run in CI; benchmarks/fault_matrix.py has all."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.running.matrix import Cell, cells, pairwise, run_cell

_PAIRS = pairwise(cells())
#: Every fourth of the others, so that triples are tried too.
CHOSEN = [*_PAIRS, *[cell for cell in cells() if cell not in _PAIRS][::4]]


@pytest.mark.real
@pytest.mark.parametrize("cell", CHOSEN, ids=str)
def test_every_fault_ends_every_rank_names_the_culprit_and_leaves_nothing(cell: Cell, tmp_path: Path) -> None:
    seen = run_cell(cell, tmp_path)
    assert seen.problems == ()
