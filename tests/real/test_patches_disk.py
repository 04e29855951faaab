"""Patches where the disk is full, a small one in memory that nobody else sees, and killed at each single step."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from disagg_run.patching import apply_patches
from tests.patching.driving import DOING, WHOM, check_killed, drive, own_mounts
from tests.patching.toy import ALL, install, sources
from tests.patching.two_driver import Two, sources_of

pytestmark = pytest.mark.real


def test_a_full_disk_leaves_the_tree_whole_with_any_number_of_free_pages(tmp_path: Path) -> None:
    results = drive("filled", tmp_path, 12, before=own_mounts())
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
def test_killed_at_each_step_the_tree_is_whole_old_or_new(memory: Path, doing: str, whom: str) -> None:
    # One that is stopped is waited for, at each step for as long.
    halfway = check_killed(memory, doing, whom, stride=3 if whom == "stopped" else 1)
    # With both killed at once it does stop between two renames: without the one or the other it would not go on.
    assert bool(halfway) == (whom == "both")


@pytest.mark.parametrize(("whom", "ended_by"), [("command", signal.SIGKILL), ("group", signal.SIGTERM)])
@pytest.mark.parametrize("doing", DOING)
def test_two_import_roots_are_both_old_or_both_new_whichever_step_a_kill_comes_at(
    memory: Path, doing: str, whom: str, ended_by: signal.Signals
) -> None:
    reference = Two.install(memory / "reference")
    old = [sources_of(files) for files in reference.files()]
    reference.do("apply")
    new = [sources_of(files) for files in reference.files()]
    reference.do("revert")
    clean = reference.files()
    results = drive("killed", memory, doing, whom, 6, module="two_driver")
    assert old in [result["killed"] for result in results]
    assert new in [result["killed"] for result in results]
    for result in results:
        assert result["killed"] in (old, new)
        assert result["signal"] == ended_by
        assert not any(result["problems"])
        assert [sources_of(files) for files in result["apply"]] == new
        assert result["revert"] == clean
