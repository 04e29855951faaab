"""Patches where things go wrong: killed at every step, many at once, no room on the disk. Whole, old or new."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from disagg_run.errors import PatchError
from disagg_run.patching import apply_patches, revert_patches
from disagg_run.patching.locking import locked
from disagg_run.patching.manifest import LOCK
from tests.patching.toy import ALL, by_state, digests, install, sources

#: What is killed, and over what.
WHOM = ("command", "carrier", "both")
DOING = ("apply", "revert")


def drive(*words: object) -> Any:
    """What the driver found."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.patching.rough_driver", *map(str, words)],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},  # its own children stand elsewhere
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Path]:
    """A directory in memory where there is one: hundreds of syncs to a disk would take their time."""
    if not os.access("/dev/shm", os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        yield Path(directory)


@pytest.mark.parametrize("whom", WHOM)
@pytest.mark.parametrize("doing", DOING)
def test_killed_at_any_step_the_tree_is_whole_old_or_new(memory: Path, doing: str, whom: str) -> None:
    """At some steps; tests/real/test_patches_disk.py has all of them."""
    check_killed(memory, doing, whom, stride=9)


def check_killed(directory: Path, doing: str, whom: str, *, stride: int) -> list[dict[str, Any]]:
    """Kill ``whom`` at every ``stride``-th step.

    Only where the command and who carries its change to the end are killed at once may a part of the files be new.
    """
    clean = digests(install(directory / "clean"))
    apply_patches(ALL, target=install(directory / "patched"))
    new, old = sources(directory / "patched"), sources(directory / "clean")
    results: list[dict[str, Any]] = drive("kill", directory, doing, whom, stride)
    assert len(results) > 15 // stride
    for result in results:
        assert result["signal"] == (0 if whom == "carrier" else signal.SIGKILL)
        for name, digest in result["killed"].items():
            assert digest in (old[name], new[name]), (result["step"], name)
        if result["killed"] not in (old, new):
            # It says so, and whoever comes next finishes it before anything starts.
            assert whom == "both"
            assert result["unfinished"]
        if whom == "carrier":
            assert result["left"] == []
            assert result["killed"] == (new if doing == "apply" else old)
        assert set(result["states"].values()) <= {"applied", "already applied"}
        assert result["applied"] == new
        assert result["reverted"] == clean
    return [result for result in results if result["killed"] not in (old, new)]


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
