"""Runs one rank of a plan: preflight, patches, processes in their order, and teardown, however the run ends."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import time
import traceback
from collections.abc import Coroutine, Mapping
from typing import Any

import attrs

from disagg_run.errors import CanaryError, DisaggError, WorkloadError
from disagg_run.logs import event_log
from disagg_run.running import environment
from disagg_run.running.bringup import BringUp
from disagg_run.running.console import Console
from disagg_run.running.ending import Ending
from disagg_run.running.first import FirstRank
from disagg_run.running.gates import Board
from disagg_run.running.link import FirstGone, Spoke
from disagg_run.running.node_setup import prepare
from disagg_run.running.outcome import AGENT, GUARDIAN, RUN, SIGNAL_CODES, Failure, heeded, signal_name
from disagg_run.running.probes import Prober, http_client
from disagg_run.running.reaper import Reaper
from disagg_run.running.room import Room, writing
from disagg_run.running.rundir import RunDir
from disagg_run.running.share import Share
from disagg_run.running.star import Hub
from disagg_run.running.star_socket import STAR_PORT, listen
from disagg_run.running.supervisor import Supervisor
from disagg_run.running.tails import Tails, last_lines
from disagg_run.running.timing import Timing
from disagg_run.running.verdict import Verdict

#: For a second signal to mean that the grace is over, in seconds after the first (a terminal and a launcher may both
#: deliver the first one).
_SECOND_S = 0.5
#: Between two cancellations of work that did not end, in seconds.
_AGAIN_S = 0.1


@attrs.frozen(kw_only=True)
class AgentOptions:
    """How an agent is started."""

    share: Share
    run_dir: RunDir
    run_id: str
    #: Secret of the star; "" for a launch of one rank.
    token: str = ""
    #: Host and port of rank 0's agent.
    star: tuple[str, int] | None = None
    #: A socket that listens there already, given to rank 0's agent by a launcher.
    star_socket: socket.socket | None = None
    #: Streamed completions to send once serving; None = serve until told to stop.
    smoke: int | None = None
    timing: Timing = attrs.field(factory=Timing)
    #: Whether a launcher on this machine shows the outcome of all ranks.
    launched: bool = False


def run_agent(options: AgentOptions) -> int:
    """Run a rank to its end and return its exit code."""
    return asyncio.run(Agent(options).run())


class Agent:
    """One rank's run."""

    def __init__(self, options: AgentOptions) -> None:
        self.options = options
        self.share = options.share
        self.rank = options.share.rank.rank
        self.timing = options.timing
        self._guardian = os.getppid()
        options.run_dir.make()
        prefix = f"{self.rank}| " if self.share.ranks > 1 else ""
        self.console = Console(prefix=prefix)
        events = options.run_dir.events(self.rank)
        with writing(events, f"the events of rank {self.rank}"):
            self.log, self._sink = event_log(events, self.console.write, lost=self._event_lost, rank=self.rank)
            # Ranks of one machine share the directory, and one word of it is enough.
            alone = self.rank == 0 or not options.launched
            self.room = Room(options.run_dir.path, self.log.warning if alone else self.log.debug)
        self.verdict = Verdict()
        own = [process.name for process in self.share.processes()]
        self.board = Board(dict.fromkeys((*own, *self.share.remote, *self.share.roster)))
        self.reaper = Reaper()
        self.supervisor = Supervisor(self.reaper, options.run_dir.logs, self.told_to_processes())
        self.tails = Tails(self.console.write)
        self.client = http_client()
        self.prober = Prober(self.client, self.share.served_name)
        self.hurry = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._signalled = 0.0
        #: Rank 0's end of the star, or another rank's.
        self.hub = self._hub() if self.rank == 0 else None
        self.spoke = self._spoke() if self.rank != 0 else None
        self.verdict.on_failure = self._tell_failure
        self.bring_up = BringUp(self)
        self.first = FirstRank(self, self.hub) if self.hub is not None else None

    def _event_lost(self, error: OSError) -> None:
        self.room.lost(error)

    def told_to_processes(self) -> dict[str, str]:
        """The variables that mark every process of this rank."""
        return {
            environment.NODE_ADDRESS: self.share.rank.node.address,
            environment.RUN_ID: self.options.run_id,
            environment.RANK: str(self.rank),
        }

    def _hub(self) -> Hub:
        return Hub(
            ranks=self.share.ranks,
            digest=self.share.digest,
            token=self.options.token,
            board=self.board,
            verdict=self.verdict,
            watchers=self.share.watchers,
            timing=self.timing,
            note=self.log.info,
        )

    def _spoke(self) -> Spoke:
        return Spoke(
            rank=self.rank,
            digest=self.share.digest,
            token=self.options.token,
            board=self.board,
            verdict=self.verdict,
            timing=self.timing,
        )

    # --- the run -------------------------------------------------------------------------------------------------

    async def run(self) -> int:
        """From preflight to the last process's end."""
        self.reaper.open()
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(self._defect)
        for signum in heeded():
            loop.add_signal_handler(signum, self._signal, signum)
        self.log.debug(
            "agent.started", pid=os.getpid(), guardian=self._guardian, run_dir=str(self.options.run_dir.path)
        )
        self.spawn(self.tails.run())
        self.spawn(self.room.watch())
        self.spawn(self._work())
        await self.verdict.wait()
        await self._stop_work()
        await Ending(self).run()
        await self.client.aclose()
        self.console.close()
        self._sink.close()
        self.reaper.close()
        return self.verdict.exit_code

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Do ``work`` beside the rest; an error of it fails the run."""
        task = asyncio.create_task(self._guarded(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except DisaggError as error:
            if isinstance(error, (CanaryError, WorkloadError)):
                # A process that died and caused this is reported meanwhile, and is then the culprit.
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self.verdict.wait(), self.timing.settle_s)
            rank, process = (0, AGENT) if isinstance(error, FirstGone) else (self.rank, RUN)
            self.verdict.fail(Failure.of(error, rank=rank, process=process))
        except Exception as error:  # noqa: BLE001 - a defect of ours must still end the run everywhere
            self._defect(None, {"exception": error})

    def _defect(self, loop: asyncio.AbstractEventLoop | None, context: dict[str, Any]) -> None:
        error = context.get("exception")
        what = f"{type(error).__name__}: {error}" if error is not None else str(context.get("message"))
        trace = "".join(traceback.format_exception(error)) if isinstance(error, BaseException) else ""
        self.log.error("agent.defect", what=what, traceback=trace)
        text = f"the agent of rank {self.rank} failed: {what}"
        self.verdict.fail(Failure(rank=self.rank, process=RUN, message=text))

    async def _work(self) -> None:
        await self._join()
        with self.reaper.leaving_orphans():
            await prepare(self.share, self.log.info, self.log.warning)
        for process in self.share.processes():
            if process.kind != "workload":
                self.spawn(self.bring_up.start(process))
        self.spawn(self.bring_up.watch_stopped())
        self.spawn(self.bring_up.watch_guardian(self._guardian))
        if self.first is not None:
            self.spawn(self.first.progress())
            await self.first.serve()

    async def _join(self) -> None:
        star = self.options.star or (self.share.first_address, STAR_PORT)
        if self.spoke is not None:
            await self.spoke.open(*star, listens=self.options.launched)
        elif self.hub is not None and self.first is not None and self.share.ranks > 1:
            await self.hub.open(self.options.star_socket or listen(*star))
            self.first.register.set(star=f"{star[0]}:{star[1]}")

    # --- how it ends ---------------------------------------------------------------------------------------------

    def _signal(self, signum: signal.Signals) -> None:
        now = time.monotonic()
        if signum == signal.SIGTERM and os.getppid() != self._guardian:
            text = f"the guardian of rank {self.rank} is gone"
            self.verdict.fail(Failure(rank=self.rank, process=GUARDIAN, message=text))
        elif not self._signalled:
            self._signalled = now
            name = signal_name(signum)
            self.verdict.fail(
                Failure(
                    rank=self.rank,
                    process=RUN,
                    message=f"ended by {name}",
                    exit_code=SIGNAL_CODES[signum],
                    signal=name,
                )
            )
        elif now - self._signalled > _SECOND_S:
            self.hurry.set()

    def _tell_failure(self, failure: Failure) -> None:
        if self.hub is not None:
            self.hub.stop(failure)
        elif self.spoke is not None:
            self.spoke.fail(failure)

    def announce(self, state: Mapping[str, Any]) -> None:
        """Tell whom it concerns how far a process of this rank has come."""
        if self.spoke is not None:
            self.spoke.announce(state)
        if self.hub is not None and self.first is not None:
            self.hub.announce(state)
            self.first.register.state(state)

    def blame(self, error: DisaggError, process: str, **more: Any) -> None:
        """Fail the run because of one of this rank's processes, with the end of its log."""
        log = self.supervisor.log_path(process)
        failure = Failure.of(error, rank=self.rank, process=process)
        self.verdict.fail(attrs.evolve(failure, lines=last_lines(log), log=str(log) if log.exists() else "", **more))

    async def _stop_work(self) -> None:
        # Before Python 3.12 wait_for may lose a cancellation that comes just when its answer does: say it again.
        while self._tasks:
            for task in tuple(self._tasks):
                task.cancel()
            await asyncio.wait(self._tasks, timeout=_AGAIN_S)
