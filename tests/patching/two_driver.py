"""Patches over two import roots, in a process of its own: killed at each step, and with a file that nobody can replace.

    python -m tests.patching.two_driver killed DIR apply|revert command|group COUNT
    unshare --mount python -m tests.patching.two_driver blocked DIR apply|revert nobody|command|carrier|both STRIDE

``blocked``: the last file to be replaced is mounted on itself after all was looked at, just before the first rename.
Results go to stdout as JSON.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import attrs

from disagg_run.patching import apply_patches, carrying, ledgers, revert_patches
from disagg_run.patching.locking import locked
from disagg_run.patching.manifest import LOCK
from tests.patching.killing import block, block_at_first_rename, die_at
from tests.patching.rough_carrier import MARK
from tests.patching.rough_driver import carry_alone, complaint, in_child, rough_carrier
from tests.patching.toy import ALL, FINISH, by_state, digests, edited, install

PATCHES = (
    edited(FINISH, id="tox-finish", package=["tox"], versions="", file="tox/server.py", sets=[]),
    *ALL,
)


@attrs.frozen
class Two:
    """Two import roots: with the package ``tox``, of which one file is patched, and with ``toy``, of which two are."""

    roots: tuple[Path, ...]
    #: The interpreter that imports both.
    python: Path

    @classmethod
    def install(cls, directory: Path) -> Two:
        """Both packages below ``directory``."""
        roots = tuple(install(directory / name) for name in ("tox", "toy"))
        (roots[0] / "toy").rename(roots[0] / "tox")
        python = directory / "python3"
        path = ":".join(map(str, roots))
        python.write_text(f'#!/bin/sh\nPYTHONPATH={path} exec {sys.executable} "$@"\n')
        python.chmod(0o755)
        return cls(roots, python)

    def do(self, doing: str) -> dict[str, str]:
        """Apply all patches, or revert all."""
        found = apply_patches(PATCHES, python=str(self.python)) if doing == "apply" else revert_patches(self.roots)
        return by_state(found)

    def files(self) -> list[dict[str, str]]:
        """All files of both."""
        return [digests(root) for root in self.roots]

    def settle(self) -> None:
        """Wait until nobody changes them: whoever carries a change to its end holds the locks."""
        for root in self.roots:
            with locked(root / LOCK, 20):
                pass


def killed(directory: Path, doing: str, whom: str, count: str) -> list[dict[str, Any]]:
    """Kill a change at COUNT of its steps and at the last ones, alone or with SIGTERM for its whole process group.

    Then make it again, and take it back.
    """
    tempfile.gettempdir()  # which it finds out but once, in as many steps
    total = killed_at(0, directory, doing, whom)["steps"]
    steps = sorted({1 + total * part // int(count) for part in range(int(count))} | {total - 3, total})
    return [killed_at(step, directory, doing, whom) for step in steps]


def killed_at(step: int, directory: Path, doing: str, whom: str) -> dict[str, Any]:
    """What one kill leaves; 0 = none, and how many steps there are."""
    two = Two.install(directory / f"{step}")
    if doing == "revert":
        two.do("apply")

    def work() -> int:
        os.setpgid(0, 0)
        steps = die_at(step, partial(os.killpg, 0, signal.SIGTERM) if whom == "group" else lambda: None)
        two.do(doing)
        return steps()

    steps, ended_by = in_child(work)
    two.settle()
    result: dict[str, Any] = {"steps": steps, "signal": ended_by}
    result["killed"] = [sources_of(files) for files in two.files()]
    result["problems"] = [each.problem for each in ledgers(two.roots)]
    for again in ("apply", "revert"):
        two.do(again)
        result[again] = two.files()
    shutil.rmtree(directory / f"{step}")
    return result


def blocked(directory: Path, doing: str, whom: str, stride: str) -> list[dict[str, Any]]:
    """Make a change whose last file is mounted on meanwhile, killed at a step; then again, with and without that."""
    results: list[dict[str, Any]] = []
    for step in range(1, 1000, int(stride)):
        two = Two.install(directory / f"{step}")
        if doing == "revert":
            two.do("apply")
        last = two.roots[1] / "toy/loop.py"
        before = two.files()

        def work(step: int = step, two: Two = two, last: Path = last) -> str:
            return complaint(rough_work(two, doing, whom, step, last))

        said, ended_by = in_child(work)
        two.settle()
        marks = [root / MARK for root in two.roots if (root / MARK).exists()]
        for mark in marks:
            mark.rmdir()
        result: dict[str, Any] = {"before": before, "said": said, "ended": bool(ended_by or marks)}
        result["after"] = two.files()
        if str(last) not in Path("/proc/self/mountinfo").read_text():
            block(last)
        result["again"] = complaint(partial(two.do, doing))
        result["whole"] = two.files()
        subprocess.run(["umount", str(last)], check=True)
        result["states"] = two.do(doing)
        two.do("revert")
        result["reverted"] = two.files()
        results.append(result)
        shutil.rmtree(directory / f"{step}")
        if not result["ended"]:
            return results
    raise SystemExit("it never came to an end")


def rough_work(two: Two, doing: str, whom: str, step: int, last: Path) -> Callable[[], object]:
    """The change, with its obstacle, killed at ``step``."""
    if whom in ("nobody", "command"):
        carrying.carry = carry_alone
        block_at_first_rename(last)
        if whom == "command":
            die_at(step)
    else:
        carrying.COMMAND = rough_carrier(step, whom, str(last))
    return partial(two.do, doing)


def sources_of(files: dict[str, str]) -> dict[str, str]:
    """Those that a package came with."""
    return {name: digest for name, digest in files.items() if name.endswith(".py")}


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        print(json.dumps({"killed": killed, "blocked": blocked}[sys.argv[1]](Path(sys.argv[2]), *sys.argv[3:])))
