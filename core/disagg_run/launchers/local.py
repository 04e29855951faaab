"""Starts an agent for each rank of a plan on this machine, and waits for all of them."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from types import FrameType

import attrs

from disagg_run.errors import RunError
from disagg_run.planning.document import LaunchPlan
from disagg_run.running import environment, proctree
from disagg_run.running.launch import LaunchOptions
from disagg_run.running.report import describe
from disagg_run.running.rundir import RunDir, culprit_of, default_path, new_id
from disagg_run.running.star_socket import listen
from disagg_run.running.token import new_token, read_token

#: For the other ranks to end by themselves once one has failed, in seconds; then they are told to.
_OTHERS_S = 6.0
#: For one that was told to, in seconds; its guardian ends everything below it by then.
_TOLD_S = 40.0
#: For what a killed guardian left to be gone, in seconds.
_SWEEP_S = 5.0
#: Between two looks where the kernel has no pidfd, in seconds.
_LOOK_S = 0.05


def start_ranks(plan: LaunchPlan, options: LaunchOptions) -> int:
    """Run every rank of ``plan`` here; returns 0 or the exit code of the first failure."""
    run_id = new_id()
    run_dir = RunDir(path=(options.run_dir or default_path(plan, run_id)).absolute())
    run_dir.make()
    run_dir.plan.write_bytes(plan.to_json().encode("utf-8", "surrogatepass"))
    print(f"run directory: {run_dir.path}", file=sys.stderr, flush=True)
    token = read_token(options.token_file, needed=False) or new_token()
    proctree.become_subreaper()
    with contextlib.ExitStack() as stack:
        sock = stack.enter_context(listen(plan.ranks[0].node.address, 0))
        star = f"{plan.ranks[0].node.address}:{sock.getsockname()[1]}"
        started = _Started(run_id=run_id)
        stack.enter_context(started.passing_signals())
        for rank in plan.ranks:
            words = _words(run_dir, rank.rank, run_id, star, options)
            started.start(words, _agent_env(token, sock.fileno() if rank.rank == 0 else None), sock.fileno())
        sock.close()
        code = started.wait()
    _say_how(run_dir, code)
    return code


def _words(run_dir: RunDir, rank: int, run_id: str, star: str, options: LaunchOptions) -> list[str]:
    words = [sys.executable, "-m", "disagg_run.cli.agent", "--plan", str(run_dir.plan), "--rank", str(rank)]
    words += ["--run-dir", str(run_dir.path), "--run-id", run_id, "--star", star]
    timing = options.timing
    words += ["--grace", f"{timing.grace_s:g}", "--hang-timeout", f"{timing.hang_s:g}"]
    words += ["--join-timeout", f"{timing.join_s:g}"]
    if options.smoke is not None:
        words += ["--smoke", str(options.smoke)]
    return words


def _agent_env(token: str, star_fd: int | None) -> dict[str, str]:
    env = {**os.environ, environment.TOKEN: token, environment.LAUNCHER: str(os.getpid())}
    env.pop(environment.STAR_FD, None)
    if star_fd is not None:
        env[environment.STAR_FD] = str(star_fd)
    return env


@attrs.define(kw_only=True)
class _Started:
    """The guardians that were started."""

    run_id: str
    children: list[subprocess.Popen[bytes]] = attrs.field(factory=list)
    #: Signal that ended the launcher's patience; 0 = none.
    signalled: int = 0

    def start(self, words: list[str], env: dict[str, str], descriptor: int) -> None:
        """Start one guardian, in a session of its own so that Ctrl-C reaches it once: through us."""
        pass_fds = (descriptor,) if environment.STAR_FD in env else ()
        self.children.append(
            subprocess.Popen(words, env=env, stdin=subprocess.DEVNULL, start_new_session=True, pass_fds=pass_fds)
        )

    @contextlib.contextmanager
    def passing_signals(self) -> Iterator[None]:
        """Pass SIGINT, SIGTERM and SIGHUP on to all guardians meanwhile."""
        if threading.current_thread() is not threading.main_thread():
            yield  # Python handles signals in the main thread alone; the caller's program keeps its own handlers
            return

        def handle(signum: int, frame: FrameType | None) -> None:
            self.signalled = signum
            self.tell(signum)

        signums = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        before = {signum: signal.signal(signum, handle) for signum in signums}
        try:
            yield
        finally:
            self.end()
            for signum, handler in before.items():
                signal.signal(signum, handler)

    def tell(self, signum: int) -> None:
        """Signal every guardian that still runs."""
        for child in self.children:
            if child.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    child.send_signal(signum)

    def wait(self) -> int:
        """Until all ranks have ended; the exit code of the one that failed first, or 0."""
        code = 0
        deadline: float | None = None
        running = list(self.children)
        while running:
            _until_one_ends(running, deadline)
            for child in [each for each in running if each.poll() is not None]:
                running.remove(child)
                if child.returncode < 0:
                    self._sweep()
                code = code or _exit_code(child.returncode)
                if code and deadline is None:
                    deadline = time.monotonic() + _OTHERS_S
            if running and deadline is not None and time.monotonic() > deadline:
                self.tell(signal.SIGTERM)
                deadline = time.monotonic() + _TOLD_S
        return code

    def _sweep(self) -> None:
        """End what a guardian that was killed together with its agent left: we are its subreaper.

        Only what descends from us, carries this run's mark, and belongs to no guardian that still runs.
        """
        deadline = time.monotonic() + _SWEEP_S
        while time.monotonic() < deadline:
            stats = proctree.snapshot()
            kept = {child.pid for child in self.children if child.returncode is None}
            for pid in tuple(kept):
                kept.update(stat.pid for stat in proctree.descendants(pid, stats))
            ours = [stat for stat in proctree.descendants(os.getpid(), stats) if stat.pid not in kept and stat.alive]
            left = [stat for stat in ours if proctree.has_variable(stat.pid, environment.RUN_ID, self.run_id)]
            if not left:
                return
            proctree.send_all(left, signal.SIGKILL)
            for stat in left:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(stat.pid, os.WNOHANG)
            time.sleep(_LOOK_S)

    def end(self) -> None:
        """End whatever still runs, where something of ours failed in between."""
        if any(child.poll() is None for child in self.children):
            self.tell(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                for child in self.children:
                    child.wait(_TOLD_S)


def _until_one_ends(running: list[subprocess.Popen[bytes]], deadline: float | None) -> None:
    """Wait until one of ``running`` has ended, a signal came, or ``deadline`` (monotonic) has passed."""
    left = None if deadline is None else max(0.0, deadline - time.monotonic())
    poller = select.poll()
    descriptors = []
    try:
        for child in running:
            descriptors.append(os.pidfd_open(child.pid))
            poller.register(descriptors[-1], select.POLLIN)
        poller.poll(None if left is None else left * 1000)
    except ProcessLookupError:  # it has ended by now
        return
    except OSError:  # no pidfd before Linux 5.3
        time.sleep(_LOOK_S if left is None else min(left, _LOOK_S))
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def _exit_code(returncode: int) -> int:
    """A guardian's exit code; one that a signal ended counts as a failed run."""
    return RunError.exit_code if returncode < 0 else returncode


def _say_how(run_dir: RunDir, code: int) -> None:
    if code == 0:
        return
    culprit = culprit_of(run_dir)
    lines = describe(culprit, run_dir.path) if culprit else [f"error: the run failed; see {run_dir.path}"]
    print("\n".join(lines), file=sys.stderr, flush=True)
