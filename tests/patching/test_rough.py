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


def drive(*words: object) -> Any:
    """What the driver found."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.patching.rough_driver", *map(str, words)],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
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


@pytest.mark.parametrize("doing", ["apply", "revert"])
def test_killed_at_any_step_every_file_is_whole_and_the_next_run_ends_the_work(memory: Path, doing: str) -> None:
    clean = digests(install(memory / "clean"))
    patched_root = install(memory / "patched")
    apply_patches(ALL, target=patched_root)
    new, old = sources(patched_root), sources(memory / "clean")
    results = drive("kill", memory, doing)
    assert len(results) > 30
    halfway = 0
    for result in results:
        assert result["signal"] == signal.SIGKILL
        for name, digest in result["killed"].items():
            assert digest in (old[name], new[name]), (result["step"], name)
        if result["killed"] not in (old, new):
            # Between two renames: it says so, and whoever comes next finishes it before anything starts.
            assert result["unfinished"]
            halfway += 1
        assert set(result["states"].values()) <= {"applied", "already applied"}
        assert result["applied"] == new
        assert result["reverted"] == clean
    assert halfway > 0


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
