"""Patches where things go wrong: killed at every step, many at once, no room on the disk. Whole, old or new."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from disagg_run.errors import PatchError
from disagg_run.patching import apply_patches, revert_patches
from disagg_run.patching.locking import locked
from disagg_run.patching.manifest import LOCK
from tests.patching.driving import DOING, WHOM, check_killed, drive
from tests.patching.toy import ALL, by_state, install, sources


@pytest.mark.parametrize("whom", [each for each in WHOM if each != "stopped"])
@pytest.mark.parametrize("doing", DOING)
def test_killed_at_any_step_the_tree_is_whole_old_or_new(memory: Path, doing: str, whom: str) -> None:
    """At some steps; tests/real/test_patches_disk.py has all of them."""
    check_killed(memory, doing, whom, stride=25)


def test_of_sixteen_processes_at_once_one_writes_and_all_agree(tmp_path: Path) -> None:
    found = drive("race", tmp_path, 16)
    assert set(found["codes"]) == {0}
    assert {tuple(sorted(states)) for states in found["states"]} == {tuple(sorted(patch.id for patch in ALL))}
    wrote = [states for states in found["states"] if set(states.values()) == {"applied"}]
    agreed = [states for states in found["states"] if set(states.values()) == {"already applied"}]
    assert (len(wrote), len(agreed)) == (1, 15)
    for name, seen in found["seen"].items():
        assert set(seen) <= {found["old"][name], found["new"][name]}, f"{name} was seen torn"
    single = install(tmp_path / "single")
    apply_patches(ALL, target=single)
    assert found["new"] == sources(single)
    assert not [name for name in found["all"] if name.endswith((".disagg-run-new", ".lock", ".next"))]


def test_a_disk_without_room_leaves_everything_as_it_was(tmp_path: Path) -> None:
    *failed, enough = drive("full", tmp_path, 20000)
    assert len(failed) == 6
    for found in failed:
        root = tmp_path / str(found["size"])
        assert found["answer"].startswith(f"cannot patch {root}: file too large ("), found
        assert "nothing was changed" in found["answer"]
        assert found["after"] == found["before"]
    assert enough["answer"] == ""
    reference = install(tmp_path / "reference")
    apply_patches(ALL, target=reference)
    assert sources(tmp_path / "20000") == sources(reference)


def test_a_lock_that_is_not_given_back_ends_the_wait_and_names_its_holder(tmp_path: Path) -> None:
    root = install(tmp_path / "site")
    with locked(root / LOCK, 1.0), pytest.raises(PatchError, match=f"process {os.getpid()}") as refusal:
        apply_patches(ALL, target=root, lock_timeout_s=0.2)
    assert "was not free in 0 s" in str(refusal.value)
    assert not (root / LOCK).exists()
    assert set(by_state(apply_patches(ALL, target=root)).values()) == {"applied"}


def test_where_nothing_is_left_to_do_nothing_is_written_not_even_a_lock(tmp_path: Path) -> None:
    root = install(tmp_path / "site")
    apply_patches(ALL, target=root)
    with locked(root / LOCK, 1.0):
        assert set(by_state(apply_patches(ALL, target=root, lock_timeout_s=0)).values()) == {"already applied"}
    revert_patches([root])
