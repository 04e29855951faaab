"""Patches where a file or directory cannot be replaced, in a process of its own whose mounts nobody else sees.

    unshare --mount python -m tests.patching.mount_driver DIR OBSTACLE...

Results go to stdout as JSON.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import attrs

from disagg_run.patching import apply_patches, check_patches, revert_patches
from disagg_run.patching.manifest import BACKUP_SUFFIX, MANIFEST
from tests.patching.rough_driver import complaint
from tests.patching.toy import ALL, by_state, digests, install


@attrs.frozen
class Obstacle:
    """Something that keeps a file from being replaced."""

    #: Where it is, relative to the import root.
    path: str
    put: tuple[str, ...]
    take: tuple[str, ...]
    #: Whether there is such a file only once patches are applied.
    later: bool = False

    def run(self, root: Path, words: tuple[str, ...]) -> None:
        """``put`` or ``take``; the word PATH stands for the path."""
        subprocess.run([word.replace("PATH", str(root / self.path)) for word in words], check=True)


def flag(path: str, letter: str, *, later: bool = False) -> Obstacle:
    """An inode flag that keeps root too from changing a file or directory."""
    return Obstacle(path, ("chattr", f"+{letter}", "PATH"), ("chattr", f"-{letter}", "PATH"), later)


LOOP = "toy/loop.py"
OBSTACLES = {
    "mount": Obstacle(LOOP, ("mount", "--bind", "PATH", "PATH"), ("umount", "PATH")),
    "read-only": Obstacle(".", ("mount", "-o", "bind,ro", "PATH", "PATH"), ("umount", "PATH")),
    "immutable file": flag(LOOP, "i"),
    "append-only file": flag(LOOP, "a"),
    "immutable directory": flag("toy", "i"),
    "append-only directory": flag("toy", "a"),
    "immutable root": flag(".", "i"),
    "append-only root": flag(".", "a"),
    "immutable ledger": flag(MANIFEST, "i", later=True),
    "immutable backup": flag(LOOP + BACKUP_SUFFIX, "i", later=True),
}


def refused(directory: Path, names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Each named obstacle in the way of check, apply and revert; then the same without it."""
    results: dict[str, dict[str, Any]] = {}
    for name in names:
        obstacle = OBSTACLES[name]
        root = install(directory / name.replace(" ", "-"))
        result: dict[str, Any] = {"root": str(root), "clean": digests(root)}
        if not obstacle.later:
            obstacle.run(root, obstacle.put)
            result["check"] = complaint(lambda root=root: check_patches(ALL, target=root))  # type: ignore[misc]
            result["apply"] = complaint(lambda root=root: apply_patches(ALL, target=root))  # type: ignore[misc]
            result["after apply"] = digests(root)
            obstacle.run(root, obstacle.take)
        result["applied"] = by_state(apply_patches(ALL, target=root))
        result["patched"] = digests(root)
        obstacle.run(root, obstacle.put)
        result["revert"] = complaint(partial(revert_patches, [root]))
        result["after revert"] = digests(root)
        obstacle.run(root, obstacle.take)
        revert_patches([root])
        result["reverted"] = digests(root)
        results[name] = result
    return results


if __name__ == "__main__":
    print(json.dumps(refused(Path(sys.argv[1]), sys.argv[2:])))
