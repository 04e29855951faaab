"""A foreign program that is asked something, for a time at most: it is ended with all that it started."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO


def run_bounded(
    command: Sequence[str],
    *,
    timeout_s: float,
    stdout: IO[bytes] | int,
    stderr: IO[bytes] | int,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> int | None:
    """Run ``command`` for ``timeout_s`` seconds at most; its exit status as ``subprocess`` has it, None = out of time.

    Output goes to files, not to pipes: a child that it leaves behind would hold them open, and us with them. Raises
    OSError where it cannot be started.
    """
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, cwd=cwd, env=env, start_new_session=True
    )
    in_time = False
    try:
        in_time = _ends(process.pid, time.monotonic() + timeout_s)
    finally:
        # The leader is not reaped yet, so the group is certainly still ours.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return process.returncode if in_time else None


def _ends(pid: int, deadline: float) -> bool:
    """Wait for a child to end, without reaping it; False at the deadline."""
    while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)  # polled: waitid has no timeout, and a child that is reaped here could not be ended by group
    return True
