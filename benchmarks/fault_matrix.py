"""Every fault in every kind of process in every phase of a run: what was seen, as a table.

    python benchmarks/fault_matrix.py [--pairs] [WORD …]

``--pairs``: only the cover of all pairs. ``WORD``: only cells that have all these words. Exits non-zero where a cell is
not as it must be.
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.running.matrix import FAULTS, PHASES, TARGETS, Cell, cells, impossible, pairwise, run_cell


def main() -> int:
    """Run the cells and print what was seen."""
    words = [word for word in sys.argv[1:] if word != "--pairs"]
    every = cells()
    chosen = [cell for cell in (pairwise(every) if "--pairs" in sys.argv else every) if _has(cell, words)]
    bad = 0
    print(f"{'process':<18}{'phase':<14}{'fault':<14}{'seconds':>8}{'allowed':>9}{'exit':>6}  as it must be")
    for cell in chosen:
        with tempfile.TemporaryDirectory() as directory:
            seen = run_cell(cell, Path(directory))
        bad += bool(seen.problems)
        verdict = "; ".join(seen.problems) or "yes"
        print(
            f"{cell.target:<18}{cell.phase:<14}{cell.fault:<14}{seen.seconds:>8.2f}{seen.allowed_s:>9.1f}"
            f"{seen.exit_code:>6}  {verdict}",
            flush=True,
        )
    print(f"\n{len(chosen)} cells, {bad} not as they must be. Cells that cannot be:")
    reasons = Counter(
        reason
        for target in TARGETS
        for phase in PHASES
        for fault in FAULTS
        if (reason := impossible(Cell(target, phase, fault)))
    )
    for reason, count in reasons.items():
        print(f"  {count}: {reason}")
    return 1 if bad else 0


def _has(cell: Cell, words: list[str]) -> bool:
    return all(word in str(cell) for word in words)


if __name__ == "__main__":
    sys.exit(main())
