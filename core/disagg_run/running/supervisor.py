"""Starts processes, each in a session of its own with its log by file descriptor, and knows what descends from them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import attrs

from disagg_run.errors import PreflightError
from disagg_run.planning.document import PlannedProcess
from disagg_run.running import environment, proctree
from disagg_run.running.outcome import Exit
from disagg_run.running.proctree import ProcessStat
from disagg_run.running.reaper import Reaper
from disagg_run.running.room import writing


@attrs.define(kw_only=True, eq=False)
class Running:
    """A process that was started."""

    plan: PlannedProcess
    #: The real process, which is also its process group and session.
    stat: ProcessStat
    log: Path
    #: Monotonic seconds.
    started: float
    #: What it lacked to be ready when it was last asked; "" = nothing, or not asked yet.
    lack: str = ""
    #: How it ended; None while it runs.
    exit: Exit | None = None
    exited: asyncio.Event = attrs.field(factory=asyncio.Event)

    @property
    def name(self) -> str:
        """Name in the plan."""
        return self.plan.name

    @property
    def pid(self) -> int:
        """Its pid."""
        return self.stat.pid

    def family(self, stats: Mapping[int, ProcessStat] | None = None) -> list[ProcessStat]:
        """Its living processes: itself, what descends from it, its group and session, and what left all three.

        A process that daemonized is a child of the agent by now (a subreaper); its environment tells whose it was.
        """
        stats = proctree.snapshot() if stats is None else stats
        ours = proctree.descendants(os.getpid(), stats)
        found = {self.pid, *(each.pid for each in proctree.descendants(self.pid, stats))}
        for each in ours:
            if each.pid in found or not each.alive:
                continue
            if each.pgid == self.pid or each.sid == self.pid or each.ppid in found or self._lost(each):
                found.add(each.pid)
        return [stats[pid] for pid in found if pid in stats and stats[pid].alive]

    def _lost(self, stat: ProcessStat) -> bool:
        return stat.ppid == os.getpid() and proctree.has_variable(stat.pid, environment.PROCESS, self.name)

    def signal_group(self, signum: int) -> None:
        """Signal its process group; safe as long as the pid is not released."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signum)


class Supervisor:
    """Starts the processes of one rank and keeps what was started, in that order."""

    def __init__(self, reaper: Reaper, logs: Path, extra: Mapping[str, str]) -> None:
        self._reaper = reaper
        self._logs = logs
        self._extra = extra
        #: Everything that was started and not yet swept up, oldest first.
        self.started: list[Running] = []

    def log_path(self, name: str) -> Path:
        """Where the output of process ``name`` goes."""
        return self._logs / f"{name.replace('/', '_')}.log"

    def spawn(self, process: PlannedProcess, on_exit: Callable[[Running], None]) -> Running:
        """Start a process now.

        Raises PreflightError where its program is not there or cannot be executed, or a secret is missing, and RunError
        where its log cannot be written.
        """
        words = command(process)
        log = self.log_path(process.name)
        env = process_env(process, self._extra)
        with contextlib.ExitStack() as stack:
            with writing(log, f"the log of {process.name}"):
                output = stack.enter_context(log.open("ab", buffering=0))
            child = _popen(process.name, words, env, output.fileno())
        stat = proctree.read(child.pid)
        assert stat is not None  # it is our unreaped child
        running = Running(plan=process, stat=stat, log=log, started=time.monotonic())

        def ended(exit_: Exit) -> None:
            # Popen must not wait for a child that the reaper reaps.
            child.returncode = exit_.code if exit_.code is not None else -exit_.signum
            running.exit = exit_
            running.exited.set()
            on_exit(running)

        self._reaper.watch(child.pid, ended)
        self.started.append(running)
        return running

    def forget(self, running: Running) -> None:
        """Let go of a process that has ended with all that descends from it."""
        self._reaper.release(running.pid)
        self.started.remove(running)


def command(process: PlannedProcess) -> tuple[str, ...]:
    """The words that are really started: ``exec`` where the plan has it, with the interpreter filled in."""
    words = process.exec or process.argv
    return (sys.executable, *words[1:]) if words[0] == "@python" else words


def process_env(process: PlannedProcess, extra: Mapping[str, str]) -> dict[str, str]:
    """The whole environment of a process, with what the run tells every process.

    Raises PreflightError where the agent lacks one of its secrets.
    """
    missing = environment.missing_secrets(process, os.environ)
    if missing:
        raise PreflightError(
            f"{process.name} needs the variable {missing[0]!r}, which is not set here",
            remedy="export it where the agent is started; its value is never written down",
        )
    env = environment.process_environment(process, os.environ)
    return {**env, **extra, environment.PROCESS: process.name}


def _popen(name: str, words: tuple[str, ...], env: Mapping[str, str], output: int) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=env,
            start_new_session=True,
        )
    except FileNotFoundError:
        raise PreflightError(
            f"{name} cannot be started: there is no program {words[0]!r} here",
            remedy="install it, correct PATH, or name the image that has it",
        ) from None
    except OSError as error:
        raise PreflightError(f"{name} cannot be started: {words[0]!r}: {error.strerror or error}") from None


def is_stopped(running: Running) -> bool:
    """Whether a process was stopped by a signal (a debugger that holds it does not count)."""
    now = proctree.read(running.pid)
    return now is not None and now.start == running.stat.start and now.state == "T"


#: What ends a process in order; a stopped one must be continued to see it.
POLITE = (signal.SIGTERM, signal.SIGCONT)
