"""Brings one rank's processes up in their order, and watches them until the run ends."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import time
from typing import TYPE_CHECKING

from disagg_run.errors import CanaryError, GateTimeout, PreflightError, ProcessDied
from disagg_run.input_files import os_reason
from disagg_run.planning.document import PlannedProcess, Ready
from disagg_run.running import probes, proctree, supervisor
from disagg_run.running.gates import Stage, join_ports, waits_of
from disagg_run.running.preflight import held_port
from disagg_run.running.probes import Lack, until_listening, until_ready
from disagg_run.running.room import remedy
from disagg_run.running.serving import probes_to_repeat
from disagg_run.running.supervisor import Running
from disagg_run.running.tails import last_lines

if TYPE_CHECKING:
    from disagg_run.running.agent import Agent

#: Between two looks at whether a process is stopped, in seconds.
_STOPPED_S = 1.0
_AGAIN_S = 0.2
#: Before each question whether a process is broken that has lost one of its own, in seconds: it needs a moment to see.
_BROKEN_S = (0.05, 0.1, 0.2, 0.4, 0.8)
#: For a setup without a deadline of its own, in seconds.
_SETUP_S = 300.0
#: For a process to listen where it has no proof of readiness with a deadline, in seconds.
_LISTEN_S = 1800.0


class BringUp:
    """Starts processes of one rank and fails the run where one of them fails."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    async def start(self, process: PlannedProcess) -> None:
        """Wait for what ``process`` waits for, start it, and see that it becomes ready."""
        agent = self._agent
        await agent.board.wait(waits_of(process))
        try:
            await self._reachable(process)
            running = self.run(process)
            if process.kind == "setup":
                await self._finish_setup(running)
                return
            if process.name in agent.share.listened:
                agent.spawn(self._listening(running))
            for ready in process.ready:
                await until_ready(agent.prober, running, ready, agent.timing.canary_errors_s)
        except (CanaryError, GateTimeout, PreflightError) as error:
            agent.blame(error, process.name)
            return
        # Written before others are told, so that the events of two ranks stand in the order of cause and effect.
        agent.log.info("process.ready", process=process.name, after_s=round(time.monotonic() - running.started, 3))
        self._reach(running, "ready")
        repeated = probes_to_repeat(process)
        if repeated:
            agent.spawn(self._watch(running, repeated))
        for ready in repeated:
            if ready.broken_status:
                agent.spawn(self._watch_family(running, ready))

    def run(self, process: PlannedProcess) -> Running:
        """Start ``process`` now, and say so."""
        agent = self._agent
        running = agent.supervisor.spawn(process, self._exited)
        agent.tails.follow(process.name, running.log)
        agent.log.info("process.started", process=process.name, pid=running.pid, start=running.stat.start)
        self._reach(running, "started")
        return running

    def _reach(self, running: Running, stage: Stage) -> None:
        agent = self._agent
        if not agent.board.reach(running.name, stage):
            return
        mark = {"pid": running.pid, "start": running.stat.start, "since": time.time()}
        agent.announce({"process": running.name, "stage": stage, **mark})

    async def _reachable(self, process: PlannedProcess) -> None:
        """See that what is ready on other nodes also answers here."""
        agent = self._agent
        gate = asyncio.Semaphore(32)

        async def one(name: str, ready: Ready) -> None:
            async with gate:
                await self._answers(process.name, name, ready)

        await asyncio.gather(
            *(
                one(edge.process, ready)
                for edge in process.after
                if edge.until == "ready"
                for ready in agent.share.remote.get(edge.process, ())
                if ready.kind in ("tcp", "http")
            )
        )

    async def _answers(self, waiting: str, name: str, ready: Ready) -> None:
        agent = self._agent
        deadline = time.monotonic() + agent.timing.reach_s
        while lack := await agent.prober.lacking(ready):
            if time.monotonic() > deadline:
                raise GateTimeout(
                    f"{name} is ready on its own node, but {waiting} on rank {agent.rank} cannot use it: {lack}",
                    remedy="see whether the node's address is reachable and no firewall or proxy is between",
                )
            await asyncio.sleep(_AGAIN_S)

    async def _listening(self, running: Running) -> None:
        ports = join_ports(running.plan)
        timeout = max((ready.timeout_s for ready in running.plan.ready), default=_LISTEN_S)
        try:
            await until_listening(running, self._agent.share.rank.node.address, ports.values(), timeout)
        except GateTimeout as error:
            self._agent.blame(error, running.name)
            return
        self._reach(running, "listening")

    async def _finish_setup(self, running: Running) -> None:
        agent = self._agent
        timeout = next((ready.timeout_s for ready in running.plan.ready if ready.kind == "exit"), _SETUP_S)
        try:
            await asyncio.wait_for(running.exited.wait(), timeout)
        except asyncio.TimeoutError:
            raise GateTimeout(f"{running.name} has not ended after {timeout:g} s") from None
        if running.exit is None or running.exit.code != 0:
            self._blame_exit(running, "and must end with 0 before anything else starts")
            return
        if not running.family():
            agent.supervisor.forget(running)
        self._reach(running, "ready")

    def _exited(self, running: Running) -> None:
        agent = self._agent
        agent.log.info("process.exited", process=running.name, pid=running.pid, how=str(running.exit))
        agent.announce({"process": running.name, "exit": str(running.exit)})
        if agent.verdict.ended or running.plan.kind in ("setup", "workload"):
            return
        if agent.board.reached(running.name, "ready"):
            self._blame_exit(running, "while it was needed")
            return
        taken = self._taken_port(running)
        self._blame_exit(running, f"before it was ready{f': {taken}' if taken else ''}")

    def _taken_port(self, running: Running) -> str:
        """Who holds a port of a process that could not start, where that may be why; "" where nobody does."""
        family = [stat.pid for stat in running.family()]
        # A server that binds all addresses fails on a listener of any; that one counts only where the log says so.
        said = os.strerror(errno.EADDRINUSE).lower() in "\n".join(last_lines(running.log)).lower()
        return held_port(running.plan, self._agent.share.rank.node.address, family, on_any_address=said)

    def _blame_exit(self, running: Running, when: str) -> None:
        exit_ = running.exit
        assert exit_ is not None
        agent = self._agent
        # Servers may die of a line that they cannot write, and then cannot say so either.
        obstacle, then = agent.room.obstacle(), ""
        if obstacle is not None and obstacle.errno == errno.ENOSPC:
            agent.room.lost(obstacle)
            when += f", while its log, {str(running.log)!r}, could not be written: {os_reason(obstacle)}"
            then = remedy(obstacle)
        error = ProcessDied(f"{running.name} of rank {agent.rank} {exit_} {when}", remedy=then)
        agent.blame(error, running.name, code=exit_.code, signal=exit_.signal)

    async def _watch(self, running: Running, proofs: list[Ready]) -> None:
        """Ask a ready process again and again; one that passes nothing for long is hung."""
        agent = self._agent
        good = time.monotonic()
        answer_s = min(probes.ANSWER_S, agent.timing.hang_s / 2)
        pause = min(agent.timing.watch_s, agent.timing.hang_s / 4)
        while True:
            await asyncio.sleep(pause)
            lack = Lack()
            for ready in proofs:
                lack = lack or await agent.prober.lacking(ready, answer_s)
                if self._broken(running, ready, lack):
                    return
            now = time.monotonic()
            if not lack:
                good = now
            elif now - good > agent.timing.hang_s:
                text = (
                    f"{running.name} of rank {agent.rank} was ready and is not any more for {now - good:.0f} s: {lack}"
                )
                agent.blame(GateTimeout(text), running.name)
                return

    async def _watch_family(self, running: Running, ready: Ready) -> None:
        """Ask a ready process whether it is broken when one of its own processes is gone: it may exit seconds later.

        It is not asked all the time, since servers log each question.
        """
        agent = self._agent
        family = running.family()
        while running.exit is None:
            await asyncio.sleep(agent.timing.family_s)
            if all(map(proctree.still, family)):
                continue
            for pause in _BROKEN_S:
                await asyncio.sleep(pause)
                if running.exit is not None or self._broken(running, ready, await agent.prober.lacking(ready)):
                    return
            family = running.family()

    def _broken(self, running: Running, ready: Ready, lack: Lack) -> bool:
        """Fail the run where a process that was ready says that it is broken for good."""
        if not ready.broken_status or lack.status != ready.broken_status or running.exit is not None:
            return False
        error = ProcessDied(f"{running.name} of rank {self._agent.rank} says that it is broken: {lack}")
        self._agent.blame(error, running.name)
        return True

    async def watch_stopped(self) -> None:
        """Look whether a process was stopped by a signal; one that stays so is hung."""
        agent = self._agent
        since: dict[int, float] = {}
        while True:
            await asyncio.sleep(_STOPPED_S)
            now = time.monotonic()
            stopped = [each for each in agent.supervisor.started if each.exit is None and supervisor.is_stopped(each)]
            since = {each.pid: since.get(each.pid, now) for each in stopped}
            for each in stopped:
                if now - since[each.pid] >= agent.timing.stall_s:
                    text = f"{each.name} of rank {agent.rank} was stopped by a signal for {agent.timing.stall_s:g} s"
                    agent.blame(GateTimeout(text), each.name, signal="SIGSTOP")
                    return

    async def watch_guardian(self, pid: int) -> None:
        """Continue the guardian where a signal stopped it: stopped, it would not see this agent end.

        It counts as hung after the same time as a process, but nothing is lost yet that would be worth ending the run.
        """
        agent = self._agent
        since: float | None = None
        while True:
            await asyncio.sleep(_STOPPED_S)
            stat = proctree.read(pid)
            if stat is None or stat.state != "T":
                since = None
                continue
            since = since or time.monotonic()
            if time.monotonic() - since >= agent.timing.stall_s:
                agent.log.warning("guardian.continued", pid=pid, stopped_s=agent.timing.stall_s)
                proctree.send(stat, signal.SIGCONT)
