"""Patches where a file cannot be replaced: one mounted on itself, as containers do, or immutable. All or nothing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.patching.driving import DOING, drive, own_mounts
from tests.patching.mount_driver import OBSTACLES
from tests.patching.two_driver import sources_of

pytestmark = pytest.mark.real


#: Obstacles that are mounts: what is said of each, and the remedy.
MOUNTS = {
    "mount": ("is a mount point of its own", "unmount it"),
    "read-only": ("is on a file system that is mounted read-only", "mount it for writing"),
}


@pytest.mark.parametrize(
    "names",
    [
        pytest.param([*MOUNTS], id="mounts"),
        pytest.param(
            [name for name in OBSTACLES if name not in MOUNTS],
            id="flags",
            marks=pytest.mark.skipif(os.geteuid() != 0, reason="only root may set the inode flags of chattr"),
        ),
    ],
)
def test_what_cannot_be_replaced_is_told_with_place_and_remedy_before_anything_is_written(
    tmp_path: Path, names: list[str]
) -> None:
    found = drive(tmp_path, *names, before=own_mounts(), module="mount_driver")
    assert list(found) == names
    for name, result in found.items():
        obstacle = OBSTACLES[name]
        path = str(Path(result["root"], obstacle.path))
        flag = f"is {name.split()[0]} (chattr "
        what, remedy = MOUNTS.get(name, (flag, "take that off first, as root: chattr -"))
        for doing in ("revert",) if obstacle.later else ("check", "apply", "revert"):
            assert result[doing].startswith(f"cannot patch {result['root']}: {path} {what}"), (name, doing)
            assert f"nothing was changed; {remedy}" in result[doing]
        if not obstacle.later:
            assert result["after apply"] == result["clean"]
        assert set(result["applied"].values()) == {"applied"}
        assert result["after revert"] == result["patched"]
        assert result["reverted"] == result["clean"]


@pytest.mark.parametrize("whom", ["nobody", "command", "carrier", "both"])
@pytest.mark.parametrize("doing", DOING)
def test_a_rename_that_fails_halfway_puts_everything_back_also_where_a_kill_comes_over_it(
    memory: Path, doing: str, whom: str
) -> None:
    stride = {"nobody": 1, "command": 37, "carrier": 11, "both": 11}[whom]
    results = drive("blocked", memory, doing, whom, stride, before=own_mounts(), module="two_driver")
    *ended, last = results
    assert bool(ended) == (whom != "nobody")
    assert "device or resource busy" in last["said"]
    for result in results:
        before, after = list(map(sources_of, result["before"])), list(map(sources_of, result["after"]))
        assert not [name for files in result["reverted"] for name in files if "disagg-run" in name]
        if result["said"] == "":
            # Killed before it had begun, and so before that mount: then the other one has made the change.
            assert whom == "carrier"
            assert after != before
            continue
        if result["said"]:
            assert "what had been replaced was put back" in result["said"]
            assert result["after"] == result["before"]
        # Whoever comes next, with the file still mounted on, leaves it whole and old, without a trace.
        assert "is a mount point of its own" in result["again"]
        assert result["whole"] == result["before"]
        assert set(result["states"].values()) == {"applied" if doing == "apply" else "reverted"}
    assert [result for result in results if result["said"] != ""]
