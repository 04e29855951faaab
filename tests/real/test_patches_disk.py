"""Patches where the disk is full, a small one in memory that nobody else sees, and killed at each single step."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from disagg_run.patching import apply_patches
from tests.patching.test_rough import DOING, WHOM, check_killed, drive
from tests.patching.toy import ALL, install, sources

pytestmark = pytest.mark.real


def test_a_full_disk_leaves_the_tree_whole_with_any_number_of_free_pages(tmp_path: Path) -> None:
    namespace = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--mount", "--map-root-user"]
    done = subprocess.run(
        [*namespace, sys.executable, "-m", "tests.patching.rough_driver", "filled", str(tmp_path), "12"],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)
    reference = install(tmp_path / "reference")
    old = sources(reference)
    apply_patches(ALL, target=reference)
    new = sources(reference)
    outcomes = [bool(result["answer"]) for result in results]
    assert outcomes[0]
    assert not outcomes[-1]
    for result in results:
        found = {name: digest for name, digest in result["after"].items() if name in old}
        if result["answer"]:
            assert result["answer"].startswith("cannot patch ")
            assert "no space left on device" in result["answer"]
            assert "nothing was changed" in result["answer"]
            assert found == old
            assert result["after"] == result["before"]
        else:
            assert found == new
            # Taking back needs room as well: whole, patched, and said so; with room it works.
            assert "no space left on device" in result["revert"]
            assert {name: digest for name, digest in result["kept"].items() if name in old} == new
            assert result["reverted"] == result["before"]


@pytest.mark.parametrize("whom", WHOM)
@pytest.mark.parametrize("doing", DOING)
def test_killed_at_each_step_the_tree_is_whole_old_or_new(tmp_path: Path, doing: str, whom: str) -> None:
    halfway = check_killed(tmp_path, doing, whom, stride=1)
    # With both killed at once it does stop between two renames: without the one or the other it would not go on.
    assert bool(halfway) == (whom == "both")


@pytest.mark.parametrize(("whom", "ended_by"), [("command", signal.SIGKILL), ("group", signal.SIGTERM)])
def test_two_import_roots_are_both_old_or_both_new_whichever_step_a_kill_comes_at(
    tmp_path: Path, whom: str, ended_by: signal.Signals
) -> None:
    results = drive("two", tmp_path, whom, 4)
    assert {tuple(result["killed"]) for result in results} == {(False, False), (True, True)}
    for result in results:
        assert result["signal"] == ended_by
        assert not any(result["problems"])
        assert result["applied"] == [True, True]
        assert result["reverted"] == [False, False]
        assert result["left"] == []
