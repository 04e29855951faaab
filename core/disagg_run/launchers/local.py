"""Starts all ranks of a plan on this machine, in a process of their own, and waits for it."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from types import FrameType
from typing import Any

import attrs

from disagg_run.errors import RunError
from disagg_run.planning.document import LaunchPlan
from disagg_run.running import environment
from disagg_run.running.launch import LaunchOptions
from disagg_run.running.outcome import RUN, SIGNAL_CODES, Failure, heeded, signal_name
from disagg_run.running.report import describe
from disagg_run.running.rundir import RunDir, culprit_of, default_path, new_id, write_result
from disagg_run.running.token import new_token, read_token
from disagg_run.streams import say

#: For ranks that lost the process above them to end, in seconds.
_ORPHANS_S = 30.0


def start_ranks(plan: LaunchPlan, options: LaunchOptions) -> int:
    """Run every rank of ``plan`` here; returns 0 or the exit code of the first failure.

    The ranks live below a process of their own, so that a program that calls this keeps its signals and children.
    """
    run_id = new_id()
    run_dir = RunDir(path=(options.run_dir or default_path(plan, run_id)).absolute())
    token = read_token(options.token_file, needed=False) or new_token()
    run_dir.claim(plan.to_json().encode("utf-8", "surrogatepass"))
    told = {
        "run_dir": str(run_dir.path),
        "run_id": run_id,
        "parent": os.getpid(),
        "smoke": options.smoke,
        "timing": attrs.asdict(options.timing),
    }
    # The ranks' process inherits the blocked signals: one that comes while it imports waits until it can pass it on.
    with contextlib.ExitStack() as stack:
        with _signals_blocked():
            say(f"run directory: {run_dir.path}")
            ranks, over = _started(told, token)
            stack.callback(os.close, over)
            stack.enter_context(_passing_signals(ranks))
        returned = _ended(ranks)
        if returned < 0:
            _await_orphans(over)
    if returned:
        say("\n".join(_outcome(returned, run_dir)))
    return returned if returned >= 0 else RunError.exit_code


def _started(told: Mapping[str, Any], token: str) -> tuple[subprocess.Popen[bytes], int]:
    """The process above the ranks, and the end of a pipe that closes when it and all agents are gone."""
    over, held = os.pipe()
    try:
        ranks = subprocess.Popen(
            [sys.executable, "-m", "disagg_run.launchers.ranks", json.dumps(told)],
            env={**os.environ, environment.TOKEN: token},
            stdin=subprocess.DEVNULL,
            pass_fds=[held],  # what agents start does not get it: Popen closes what it was not told to pass
            start_new_session=True,  # Ctrl-C reaches it once: through us
        )
    finally:
        os.close(held)
    return ranks, over


def _await_orphans(over: int) -> None:
    """Where the process above the ranks was killed, each rank ends in order by itself: wait until all have."""
    poll = select.poll()
    poll.register(over, select.POLLIN)
    poll.poll(_ORPHANS_S * 1000)


def _outcome(returned: int, run_dir: RunDir) -> list[str]:
    """What failed, for people; ``returned``: exit code of the ranks' process, or minus the signal that killed it."""
    culprit = culprit_of(run_dir)
    if returned < 0 and (culprit is None or culprit.exit_code in SIGNAL_CODES.values()):
        # The ranks know only that they were told to end.
        name = signal_name(-returned)
        text = f"the process above the ranks was killed by {name}, and every rank was ended"
        if not run_dir.ended_ranks():
            with contextlib.suppress(OSError):  # it is said below
                write_result(run_dir, 0, Failure(rank=0, process=RUN, message=text, signal=name))
        return [f"disagg-run: error: {text}", f"run directory: {run_dir.path}"]
    if culprit is None:
        return [f"disagg-run: error: the run failed, and nothing in {str(run_dir.path)!r} says why: see above"]
    return describe(culprit, run_dir.path)


def _ended(ranks: subprocess.Popen[bytes]) -> int:
    """The exit code of the ranks' process, or minus the signal that ended it; it is continued where one stops it."""
    with contextlib.suppress(ChildProcessError):  # reaped already, where a signal was just passed on
        while (seen := os.waitid(os.P_PID, ranks.pid, os.WEXITED | os.WSTOPPED | os.WNOWAIT)) is not None:
            if seen.si_code != os.CLD_STOPPED:
                break
            os.waitid(os.P_PID, ranks.pid, os.WSTOPPED | os.WNOHANG)
            say(f"the process above the ranks was stopped by {signal_name(seen.si_status)}; it is continued")
            ranks.send_signal(signal.SIGCONT)
    return ranks.wait()


@contextlib.contextmanager
def _signals_blocked() -> Iterator[None]:
    """Hold back the signals that are passed on, for the main thread and what it starts."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, heeded())
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def _passing_signals(ranks: subprocess.Popen[bytes]) -> Iterator[None]:
    """Pass on meanwhile the signals that end a run, and end the ranks where the caller's program breaks off."""

    def handle(signum: int, frame: FrameType | None) -> None:
        with contextlib.suppress(ProcessLookupError):
            ranks.send_signal(signum)

    before = {}
    # Python handles signals in the main thread alone; elsewhere the caller's program keeps its own handlers.
    if threading.current_thread() is threading.main_thread():
        before = {signum: signal.signal(signum, handle) for signum in heeded()}
    try:
        yield
    finally:
        if ranks.poll() is None:
            ranks.terminate()
            ranks.wait()
        for signum, handler in before.items():
            signal.signal(signum, handler)
