"""What a change tells where its words cannot be written: nothing but the truth, by exit code."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patching.test_planned import planned
from tests.patching.toy import LOOP, digests


def run(out: int | None, plan: Path, root: Path, doing: str) -> tuple[int, str]:
    """Exit code and stderr of ``patches apply`` or ``revert``, its stdout at ``out``; None = closed."""
    words = ["apply", "--plan", str(plan)] if doing == "apply" else ["revert"]
    command = [sys.executable, "-m", "disagg_run", "patches", *words, "--target", str(root)]
    if out is None:
        command = ["sh", "-c", 'exec "$@" >&-', "sh", *command]
    done = subprocess.run(command, stdout=out, stderr=subprocess.PIPE, text=True, check=False, timeout=60)
    return done.returncode, done.stderr


def place(kind: str) -> int | None:
    """A stdout on which nothing can be written."""
    if kind == "closed":
        return None
    if kind == "full":
        return os.open("/dev/full", os.O_WRONLY)
    reading, writing = os.pipe()
    os.close(reading)
    return writing


@pytest.mark.parametrize(
    "kind", ["full", *(pytest.param(each, marks=pytest.mark.real) for each in ("broken pipe", "closed"))]
)
def test_the_exit_code_of_a_change_is_its_own_where_its_report_cannot_be_written(
    root: Path, tmp_path: Path, kind: str
) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text(planned("toy-reaper").to_json())
    before = digests(root)
    out = place(kind)
    for doing in ("apply", "revert"):
        code, said = run(out, plan, root, doing)
        assert code == 0
        assert said.startswith("disagg-run: the report is lost (")
        assert said.endswith("the exit code is that of the change\n")
        assert len(said.splitlines()) == 1
        assert (digests(root) == before) == (doing == "revert")
    (root / "toy/loop.py").write_text(LOOP.replace("queue.get()", "queue.get_nowait()"))
    code, said = run(out, plan, root, "apply")
    assert code == 6
    report, error = said.splitlines()
    assert report.startswith("disagg-run: the report is lost (")
    assert error.startswith("disagg-run: error: patch 'toy-reaper' does not match")
    if out is not None:
        os.close(out)
