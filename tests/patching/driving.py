"""Drivers that are run in processes of their own, and what must be true of a change that was killed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from disagg_run.patching import apply_patches
from tests.patching.toy import ALL, digests, install, sources

#: What is killed (or, the last, stopped), and over what.
WHOM = ("command", "carrier", "both", "stopped")
DOING = ("apply", "revert")
#: Disk operations at least of the command, which writes, syncs and closes six files, and of who renames them.
LEAST_STEPS = {"command": 50, "carrier": 15, "both": 15, "stopped": 15}

_TREE = Path(__file__).parents[2]


def drive(*words: object, before: Sequence[str] = (), module: str = "rough_driver") -> Any:
    """What the driver found; ``before``: words of a command that runs it (``unshare``)."""
    done = subprocess.run(
        [*before, sys.executable, "-m", f"tests.patching.{module}", *map(str, words)],
        capture_output=True,
        text=True,
        cwd=_TREE,
        env={**os.environ, "PYTHONPATH": str(_TREE)},  # its own children stand elsewhere
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def own_mounts() -> list[str]:
    """The words of a command that runs another with mounts that nobody else sees."""
    return ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--mount", "--map-root-user"]


@contextlib.contextmanager
def in_memory(otherwise: Path) -> Iterator[Path]:
    """A directory in memory where there is one: hundreds of syncs to a disk would take their time."""
    if not os.access("/dev/shm", os.W_OK):
        yield otherwise
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        yield Path(directory)


def check_killed(directory: Path, doing: str, whom: str, *, stride: int) -> list[dict[str, Any]]:
    """Kill ``whom`` at every ``stride``-th step; the results of those where the tree was neither old nor new then.

    Only where the command and who carries its change to the end are killed at once may a part of the files be new.
    """
    clean = digests(install(directory / "clean"))
    apply_patches(ALL, target=install(directory / "patched"))
    new, old = sources(directory / "patched"), sources(directory / "clean")
    found = drive("kill", directory, doing, whom, stride)
    results: list[dict[str, Any]] = found["results"]
    assert found["steps"] >= LEAST_STEPS[whom]
    assert [result["step"] for result in results] == list(range(found["first"], found["steps"] + 1, stride))
    for result in results:
        assert result["signal"] == (0 if whom in ("carrier", "stopped") else signal.SIGKILL)
        for name, digest in result["killed"].items():
            assert digest in (old[name], new[name]), (result["step"], name)
        if result["killed"] not in (old, new):
            # It says so, and whoever comes next finishes it before anything starts.
            assert whom == "both"
            assert result["unfinished"]
        if whom in ("carrier", "stopped"):
            assert result["left"] == []
            assert result["killed"] == (new if doing == "apply" else old)
        assert set(result["states"].values()) <= {"applied", "already applied"}
        assert result["applied"] == new
        assert result["reverted"] == clean
    return [result for result in results if result["killed"] not in (old, new)]
