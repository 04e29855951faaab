"""The agent's parent: ends everything that descends from it when the agent ends, however it ends.

It is a child subreaper, so that a process that daemonizes, or whose parent was killed, becomes its child; it touches
nothing that does not descend from it.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

import attrs

from disagg_run import streams
from disagg_run.errors import RunError
from disagg_run.running import proctree
from disagg_run.running.outcome import SIGNAL_CODES, Exit, heeded, signal_name
from disagg_run.streams import say

#: For an agent that was stopped by a signal to go on, in seconds; its peers count it as dead by then.
STALL_S = 3.0
#: For an agent that was told to end, in seconds beside its graces: its own teardown takes at most so many of them.
PATIENCE_S = 10.0
GRACES = 4
#: From TERM to KILL for what the agent left, and from there until it is given up, in seconds.
GRACE_S = 1.0
GIVE_UP_S = 5.0


@attrs.frozen(kw_only=True)
class Killed:
    """How an agent ended that did not exit by itself."""

    #: What happened to it, as the end of a sentence.
    how: str
    #: The signal that was the reason: ``SIGSTOP`` where it was stopped and therefore ended; "" = none.
    signal: str
    #: The guardian's exit code.
    exit_code: int = RunError.exit_code
    #: When that was seen, in seconds since the epoch.
    time: float = attrs.field(factory=time.time)


def guard(
    body: Callable[[], int], on_killed: Callable[[Killed], None] | None = None, *, patience_s: float = PATIENCE_S
) -> int:
    """Run ``body`` in a child process, the agent, and return its exit code once nothing of it is left.

    ``on_killed`` is called where a signal ended the agent, to write that down; the exit code is RunError's then, or the
    signal's where the agent was told to end and had not yet begun to listen.
    ``patience_s``: for an agent that was told to end; then it is killed.
    Must be called where no other thread runs.
    """
    watched = {signal.SIGCHLD, *heeded()}
    signal.pthread_sigmask(signal.SIG_BLOCK, watched)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # one that ignores it gets no exit codes
    proctree.become_subreaper()
    guardian = os.getpid()
    agent = os.fork()
    if agent == 0:
        _become_agent(guardian, body, watched)
    watch = _Guardian(agent, watched, patience_s)
    ended = watch.wait()
    killed = watch.killed or _killed(ended, watch.told)
    left = sweep()
    if killed is not None and on_killed is not None:
        on_killed(killed)
    if left:
        say(f"these processes cannot be ended: {', '.join(str(stat.pid) for stat in left)}")
    if killed is not None or ended.code is None:
        return killed.exit_code if killed is not None else RunError.exit_code
    return ended.code or (RunError.exit_code if left else 0)


def _killed(ended: Exit, told: int) -> Killed | None:
    if not ended.signum:
        return None
    if ended.signum != told:
        return Killed(how=str(ended), signal=ended.signal)
    # It was told to end before it could do so in order.
    return Killed(how=f"was ended by {ended.signal}", signal=ended.signal, exit_code=SIGNAL_CODES[signal.Signals(told)])


def _become_agent(guardian: int, body: Callable[[], int], watched: set[signal.Signals]) -> None:
    code = 1
    try:
        # Of its own group, so that a terminal's Ctrl-C reaches it once: through the guardian.
        os.setpgid(0, 0)
        proctree.become_subreaper()
        proctree.signal_on_parent_death(signal.SIGTERM)
        # Until the agent listens to signals itself, one ends it as such: an exception would be no word of the user's.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, watched)
        if os.getppid() == guardian:  # it may have died before the line above took hold
            code = body()
    finally:
        # Nothing of the guardian's own stack may run here.
        streams.flush()
        if os.getppid() == guardian:
            _wake(guardian)  # stopped (Ctrl-Z), it would not see our end, and who waits for it would wait for ever
        os._exit(code)


@attrs.define
class _Guardian:
    """Waits for the agent, passes signals on, and ends an agent that hangs."""

    agent: int
    #: Signals that it waits for.
    watched: set[signal.Signals]
    #: For an agent that was told to end, in seconds.
    patience_s: float
    #: Monotonic time at which the agent is killed; None = it may run.
    deadline: float | None = None
    #: The last signal that was passed on; 0 = none.
    told: int = 0
    #: The signal that stopped the agent; 0 = it runs.
    stopped: int = 0
    #: Why it was killed here; None where it was not.
    killed: Killed | None = None

    def wait(self) -> Exit:
        """Until the agent has ended."""
        while True:
            ended = self._reap()
            if ended is not None:
                return ended
            received = self._next_signal()
            if received is None:
                self.killed = self._verdict()
                os.kill(self.agent, signal.SIGKILL)
                self.deadline = None
            elif received != signal.SIGCHLD:
                self.told = received
                os.kill(self.agent, self.told)
                if self.deadline is None:
                    self.deadline = time.monotonic() + self.patience_s

    def _verdict(self) -> Killed:
        if self.stopped:
            name = signal_name(self.stopped)
            return Killed(how=f"was stopped by {name} for {STALL_S:g} s, so it was ended", signal=name)
        name = signal_name(self.told)
        return Killed(how=f"had not ended {self.patience_s:g} s after {name}, so it was killed", signal="SIGKILL")

    def _next_signal(self) -> int | None:
        if self.deadline is None:
            return signal.sigwait(self.watched)
        left = self.deadline - time.monotonic()
        found = signal.sigtimedwait(self.watched, left) if left > 0 else None
        return found.si_signo if found is not None else None

    def _reap(self) -> Exit | None:
        """See what became of children; orphans are reaped by the way."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED | os.WCONTINUED)
            except ChildProcessError:
                return Exit(code=1)  # not seen: somebody reaped our agent
            if pid == 0:
                return None
            if pid != self.agent:
                continue
            if os.WIFSTOPPED(status):
                self.stopped = os.WSTOPSIG(status)
                self.deadline = time.monotonic() + STALL_S
            elif os.WIFCONTINUED(status):
                self.stopped = 0
                self.deadline = None
            elif os.WIFSIGNALED(status):
                return Exit(signum=os.WTERMSIG(status))
            else:
                return Exit(code=os.WEXITSTATUS(status))


def _wake(pid: int) -> None:
    """Let a process go on that a signal stopped."""
    stat = proctree.read(pid)
    if stat is not None and stat.state == "T":
        proctree.send(stat, signal.SIGCONT)


def sweep(grace_s: float = GRACE_S) -> list[proctree.ProcessStat]:
    """End every descendant of this process: TERM, then KILL; returns those that are still there."""
    start = time.monotonic()
    told: set[tuple[int, int]] = set()
    while _has_children():
        living = [stat for stat in proctree.descendants(os.getpid(), proctree.snapshot()) if stat.alive]
        if not living:
            continue
        elapsed = time.monotonic() - start
        if elapsed > grace_s + GIVE_UP_S:
            return living
        if elapsed > grace_s:
            proctree.send_all(living, signal.SIGKILL)
        else:
            fresh = [stat for stat in living if (stat.pid, stat.start) not in told]
            proctree.send_all(fresh, signal.SIGTERM, signal.SIGCONT)
            told.update((stat.pid, stat.start) for stat in fresh)
        signal.sigtimedwait({signal.SIGCHLD}, 0.05)
    return []


def _has_children() -> bool:
    """Reap what has ended; whether anything is left."""
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return False
        if pid == 0:
            return True
