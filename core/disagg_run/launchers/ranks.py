"""The process below which all ranks of a local launch live: one guardian each, forked when all is imported.

It is a child subreaper: what a guardian leaves that was killed together with its agent becomes its child, and is ended.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from disagg_run import streams
from disagg_run.errors import DisaggError, RunError
from disagg_run.input_files import read_bytes
from disagg_run.planning.document import LaunchPlan
from disagg_run.running import environment, proctree
from disagg_run.running.agent import AgentOptions, run_agent
from disagg_run.running.obituary import Star
from disagg_run.running.outcome import GUARDIAN, Failure, heeded, signal_name
from disagg_run.running.rundir import RunDir
from disagg_run.running.share import share_of
from disagg_run.running.star_socket import listen
from disagg_run.running.start import Post, guarded
from disagg_run.running.teardown import planned_ports
from disagg_run.running.timing import Timing
from disagg_run.streams import say

#: For the other ranks to end by themselves once one has failed, in seconds; then they are told to.
OTHERS_S = 6.0
#: For those that were told to, in seconds, before they are told again.
TOLD_S = 40.0
#: For an agent that lost its guardian to end by itself, and again for what was killed to be gone, in seconds.
_ORPHAN_S = 6.0
#: Between two looks at what is left, in seconds.
_LOOK_S = 0.05


@attrs.frozen(kw_only=True)
class Launch:
    """A local launch."""

    plan: LaunchPlan
    run_dir: RunDir
    run_id: str
    token: str
    smoke: int | None
    timing: Timing
    #: The socket at which rank 0's agent waits for the others, and its address.
    sock: socket.socket
    star: tuple[str, int]

    def post(self, rank: int) -> Post:
        """Who is told where the agent of ``rank`` cannot begin or is killed."""
        star = Star(address=self.star, digest=self.plan.digest, token=self.token)
        return Post(rank=rank, run_dir=self.run_dir, star=lambda: star, launched=True)

    def options(self, rank: int) -> AgentOptions:
        """How the agent of ``rank`` is started."""
        return AgentOptions(
            share=share_of(self.plan, rank),
            run_dir=self.run_dir,
            run_id=self.run_id,
            token=self.token,
            star=self.star,
            star_socket=self.sock if rank == 0 else None,
            smoke=self.smoke,
            timing=self.timing,
            launched=True,
        )


@attrs.frozen(kw_only=True)
class Killed:
    """A guardian that was killed."""

    #: What is told of it where its agent cannot tell.
    failure: Failure
    #: Until when its agent may end by itself (monotonic seconds).
    until: float


class Ranks:
    """The guardians of a launch."""

    def __init__(self, launch: Launch) -> None:
        self._launch = launch
        #: Guardians that have not ended, and the rank of each.
        self._running: dict[int, int] = {}
        #: Guardians that were killed, as long as something of theirs may be left.
        self._killed: dict[int, Killed] = {}
        #: Exit code of the rank that failed first.
        self._code = 0
        #: Signals that are passed on to the guardians.
        self._passed = heeded()

    def run(self) -> int:
        """Start a guardian for each rank and wait until all have ended; 0 or the exit code of the first failure."""
        signal.pthread_sigmask(signal.SIG_BLOCK, self._watched())
        proctree.become_subreaper()
        gc.freeze()  # what is there now stays shared between the ranks
        for rank in self._launch.plan.ranks:
            self._running[self._fork(rank.rank)] = rank.rank
        self._launch.sock.close()
        deadline: float | None = None
        while True:
            self._reap()
            if self._killed and not self._sweep():
                self._report()
            if not self._running and not self._killed:
                return self._code
            if self._code and deadline is None:
                deadline = time.monotonic() + OTHERS_S
            signum = self._next_signal(deadline)
            if signum in self._passed:
                self._tell(signum)
            elif deadline is not None and time.monotonic() > deadline:
                self._tell(signal.SIGTERM)
                deadline = time.monotonic() + TOLD_S

    def _fork(self, rank: int) -> int:
        parent = os.getpid()
        pid = os.fork()
        if pid:
            return pid
        code = 1
        try:
            os.setsid()
            proctree.signal_on_parent_death(signal.SIGTERM)
            if os.getppid() == parent:  # it may have died before the line above took hold
                if rank != 0:
                    self._launch.sock.close()
                launch = self._launch
                code = guarded(lambda: run_agent(launch.options(rank)), launch.post(rank), launch.timing)
        finally:
            streams.flush()
            os._exit(code)

    def _watched(self) -> set[signal.Signals]:
        return {signal.SIGCHLD, *self._passed}

    def _next_signal(self, deadline: float | None) -> int:
        """The next signal; 0 where none came until ``deadline``, or soon where there is something to sweep."""
        if self._killed:
            wait = _LOOK_S
        elif deadline is None:
            return signal.sigwait(self._watched())
        else:
            wait = max(0.0, deadline - time.monotonic())
        found = signal.sigtimedwait(self._watched(), wait)
        return found.si_signo if found is not None else 0

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED)
                if pid == 0:
                    return
                if pid not in self._running:
                    continue  # an orphan
                if os.WIFSTOPPED(status):
                    # No terminal stops it, and stopped it would neither pass on a signal nor see its agent end.
                    say(f"a guardian was stopped by {signal_name(os.WSTOPSIG(status))}; it is continued")
                    os.kill(pid, signal.SIGCONT)
                    continue
                rank = self._running.pop(pid)
                code = os.waitstatus_to_exitcode(status)
                self._code = self._code or (code if code >= 0 else RunError.exit_code)
                if code < 0:
                    name = signal_name(-code)
                    text = f"the guardian of rank {rank} was killed by {name}"
                    failure = Failure(rank=rank, process=GUARDIAN, message=text, signal=name)
                    self._killed[pid] = Killed(failure=failure, until=time.monotonic() + _ORPHAN_S)

    def _sweep(self) -> bool:
        """End what killed guardians left: all that descends from us and from no guardian that still runs.

        An agent that lost its guardian ends in order by itself and reports why, so it has some time; what has no agent
        has none. Returns whether anything is left.
        """
        stats = proctree.snapshot()
        kept = {pid for guardian in self._running for pid in (guardian, *_below(guardian, stats))}
        left = [each for each in proctree.descendants(os.getpid(), stats) if each.pid not in kept and each.alive]
        now = time.monotonic()
        until = {pid: killed.until for pid, killed in self._killed.items()}
        ending = any(until.get(each.sid, 0.0) > now for each in left)
        if not ending:
            proctree.send_all(left, signal.SIGKILL)
        return bool(left) and (ending or now < max(until.values()) + _ORPHAN_S)

    def _report(self) -> None:
        """Speak for the killed guardians whose agents ended without a word, as one does that has only just begun."""
        ended = self._launch.run_dir.ended_ranks()
        for killed in self._killed.values():
            if killed.failure.rank not in ended:
                self._launch.post(killed.failure.rank).report(killed.failure)
        self._killed.clear()

    def _tell(self, signum: int) -> None:
        for pid in self._running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signum)


def _below(pid: int, stats: Mapping[int, proctree.ProcessStat]) -> list[int]:
    return [stat.pid for stat in proctree.descendants(pid, stats)]


def _free_socket(plan: LaunchPlan) -> socket.socket:
    """A listening socket on rank 0's address at any port that the plan does not give to a process."""
    taken = {port for rank in plan.ranks for process in rank.processes() for port in planned_ports(process)}
    while True:
        sock = listen(plan.ranks[0].node.address, 0)
        if sock.getsockname()[1] not in taken:
            return sock
        sock.close()


def main() -> int:
    """Run what the one argument says; see ``launchers.local``."""
    told: dict[str, Any] = json.loads(sys.argv[1])
    proctree.signal_on_parent_death(signal.SIGTERM)
    if os.getppid() != told["parent"]:
        return RunError.exit_code
    run_dir = RunDir(path=Path(told["run_dir"]))
    token = os.environ.pop(environment.TOKEN)
    plan = LaunchPlan.from_json(read_bytes(run_dir.plan, "plan"))
    sock = _free_socket(plan)
    launch = Launch(
        plan=plan,
        run_dir=run_dir,
        run_id=told["run_id"],
        token=token,
        smoke=told["smoke"],
        timing=Timing(**told["timing"]),
        sock=sock,
        star=sock.getsockname()[:2],
    )
    return Ranks(launch).run()


def entry() -> None:
    """As ``main``, with errors as one line."""
    try:
        code = main()
    except DisaggError as error:
        say(f"disagg-run: error: {error}")
        code = error.exit_code
    sys.exit(code)


if __name__ == "__main__":
    entry()
