"""What a user is told of a run that failed."""

from __future__ import annotations

from pathlib import Path

from disagg_run.running.outcome import Failure


def describe(culprit: Failure, run_dir: Path) -> list[str]:
    """The sentence, the end of the log, and where the whole lies."""
    where = f" (rank {culprit.rank})" if f"rank {culprit.rank}" not in culprit.message else ""
    lines = [f"disagg-run: error: {culprit.message}{where}"]
    if culprit.lines:
        lines.append(f"last lines of {culprit.process}, rank {culprit.rank}:")
        lines += [f"  {line}" for line in culprit.lines]
    if culprit.log:
        lines.append(f"whole log: {culprit.log}")
    return [*lines, f"run directory: {run_dir}"]
