"""Patches applied roughly, in a process of its own: many at once, killed at every step, without room on the disk.

    python -m tests.patching.rough_driver kill DIR apply|revert command|carrier|both|stopped STRIDE
    python -m tests.patching.rough_driver race DIR COUNT
    python -m tests.patching.rough_driver full DIR LIMIT
    unshare --mount python -m tests.patching.rough_driver filled DIR PAGES

Each case is a forked child with one thread; ``kill`` ends it, or the process that carries its change to the end, or
both, at every STRIDE-th of their steps, or stops the latter. Results go to stdout as JSON.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import resource
import shutil
import subprocess
import sys
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from disagg_run.errors import DisaggError
from disagg_run.patching import apply_patches, carrying, ledgers, replacing, revert_patches
from disagg_run.patching.locking import locked
from disagg_run.patching.manifest import LOCK
from tests.patching.killing import die_at
from tests.patching.rough_carrier import MARK, STEPS
from tests.patching.toy import ALL, by_state, digests, install, sources


def in_child(work: Callable[[], Any]) -> tuple[Any, int]:
    """What ``work`` returned in a child, and the signal that ended it (0 = none)."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        code = 1
        try:
            answer = json.dumps(work()).encode()
            os.write(writing, answer)
            code = 0
        finally:
            end(code)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        text = pipe.read()
    status = os.waitpid(pid, 0)[1]
    if os.WIFSIGNALED(status):
        return None, os.WTERMSIG(status)
    if os.WEXITSTATUS(status):
        raise SystemExit("a child failed")
    return json.loads(text), 0


def end(code: int) -> None:
    """End a child without the parent's clean-up, and say what went wrong where something did."""
    if code:
        traceback.print_exc()
    os._exit(code)


def kill(directory: Path, doing: str, whom: str, stride: str) -> dict[str, Any]:
    """Kill an apply or a revert, or who carries it to the end, or both, at a step; then apply again and revert.

    With the results of each come the first step that was tried, and how many there are where none is killed.
    """
    results: list[dict[str, Any]] = []
    carry = carrying.carry
    # The first step says that it is there. One that is stopped before has longer, as a Python may start slowly.
    first = 2 if whom == "stopped" else 1
    for step in range(first, 500, int(stride)):
        carrying.carry = carry_alone
        root = install(directory / f"{doing}{step}")
        if doing == "revert":
            apply_patches(ALL, target=root)

        def work(root: Path = root, step: int = step) -> int:
            carrying.carry = carry
            done = die_at(step if whom == "command" else 0)
            if whom != "command":
                carrying.CHANGE_S = 0.4 if whom == "stopped" else carrying.CHANGE_S
                carrying.COMMAND = rough_carrier(step, whom)
            _ = apply_patches(ALL, target=root) if doing == "apply" else revert_patches([root])
            return done()

        steps, ended_by = in_child(work)
        killed: dict[str, Any] = {"step": step, "signal": ended_by}
        with locked(root / LOCK, 20):  # whoever carries it to the end holds the lock
            killed["killed"] = sources(root)
            killed["left"] = [name for name in digests(root) if name.endswith((".disagg-run-new", ".next"))]
        killed["unfinished"] = any(each.problem for each in ledgers([root]))
        if not (ended_by if whom == "command" else (root / MARK).exists()):
            if whom != "command":
                (counted,) = root.glob(f"{STEPS}*")
                steps = int(counted.name.removeprefix(STEPS))
            return {"first": first, "steps": steps, "results": results}
        with contextlib.suppress(FileNotFoundError):
            (root / MARK).rmdir()
        killed["states"] = by_state(apply_patches(ALL, target=root))
        killed["applied"] = sources(root)
        revert_patches([root])
        killed["reverted"] = digests(root)
        results.append(killed)
        shutil.rmtree(root)
    raise SystemExit("it never came to an end")


def rough_carrier(step: int, whom: str, blocked: str = "") -> Any:
    """What carries a change to its end, until it is killed or stopped at a step."""
    return (sys.executable, "-m", "tests.patching.rough_carrier", str(step), whom, blocked)


def carry_alone(roots: Sequence[Path], locks: Sequence[int]) -> None:
    """What comes before and after a kill is not what is tried: it needs no second process, which takes its time."""
    replacing.go(roots)


def race(directory: Path, count: int) -> dict[str, Any]:
    """``count`` processes that start at one moment and apply to one tree, with one more that looks all the time."""
    root = install(directory / "site")
    old = sources(root)
    gate, opener = os.pipe()
    out = directory / "states"
    out.mkdir()
    pids = []
    for number in range(count + 1):
        pid = os.fork()
        if pid:
            pids.append(pid)
            continue
        code = 1
        try:
            os.close(opener)
            os.read(gate, 1)
            work = look if number == count else lambda root, out: by_state(apply_patches(ALL, target=root))
            (out / f"{number}.json").write_text(json.dumps(work(root, out)))
            code = 0
        finally:
            end(code)
    os.close(gate)
    os.close(opener)
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids[:-1]]
    (out / "done").touch()
    codes.append(os.waitstatus_to_exitcode(os.waitpid(pids[-1], 0)[1]))
    states = [json.loads((out / f"{number}.json").read_text()) for number in range(count)]
    seen = json.loads((out / f"{count}.json").read_text())
    return {"codes": codes, "states": states, "seen": seen, "old": old, "new": sources(root), "all": digests(root)}


def look(root: Path, out: Path) -> dict[str, list[str]]:
    """The contents that each source file was ever seen with, until the others are done."""
    seen: dict[str, set[str]] = {}
    while True:
        last = (out / "done").exists()
        for name, digest in sources(root).items():
            seen.setdefault(name, set()).add(digest)
        if last:
            return {name: sorted(found) for name, found in seen.items()}


def full(directory: Path, limit: int) -> list[dict[str, Any]]:
    """Apply where no file may grow beyond so many bytes, up to ``limit``: the kernel ends every write there."""
    results = []
    for size in [size for size in (0, 50, 400, 700, 900, 3000) if size < limit] + [limit]:
        root = install(directory / str(size))
        before = digests(root)

        def work(root: Path = root, size: int = size) -> str:
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
            return attempt(root)

        answer, _ = in_child(work)
        results.append({"size": size, "answer": answer, "before": before, "after": digests(root)})
    return results


def filled(directory: Path, pages: int) -> list[dict[str, Any]]:
    """Apply, then revert, on a file system with 0, 1, … ``pages`` free pages; the caller's mounts are nobody else's."""
    results = []
    for free in range(pages + 1):
        mount = directory / str(free)
        mount.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(mount)], check=True)
        root = install(mount / "site")
        before = digests(root)
        fill(mount, free)
        answer = attempt(root)
        result = {"free": free, "answer": answer, "before": before, "after": digests(root)}
        if not answer:
            (mount / "filler").unlink()
            fill(mount, 0)
            result["revert"] = complaint(partial(revert_patches, [root]))
            result["kept"] = digests(root)
            (mount / "filler").unlink()
            revert_patches([root])
            result["reverted"] = digests(root)
        results.append(result)
        subprocess.run(["umount", str(mount)], check=True)
    return results


def fill(mount: Path, pages: int) -> None:
    """Take all room of a file system but for some pages of 4 KiB."""
    with (mount / "filler").open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 4096)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
        file.truncate(max(file.tell() - 4096 * pages, 0))


def complaint(work: Callable[[], object]) -> str:
    """The words of the error that ``work`` ends with; "" = none."""
    try:
        work()
    except DisaggError as error:
        return str(error)
    return ""


def attempt(root: Path) -> str:
    """Apply; the error's words, or "" where there was none."""
    return complaint(lambda: apply_patches(ALL, target=root))


if __name__ == "__main__":
    what, where, *rest = sys.argv[1], Path(sys.argv[2]), *sys.argv[3:]
    if what == "kill":
        print(json.dumps(kill(where, *rest)))
    else:
        print(json.dumps({"race": race, "full": full, "filled": filled}[what](where, int(rest[0]))))
