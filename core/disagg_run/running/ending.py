"""How a rank's run ends: work is stopped, processes are ended in reverse order, the last word is heard and written."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from disagg_run.running import teardown
from disagg_run.running.outcome import RUN, SIGNAL_CODES, Failure
from disagg_run.running.report import describe
from disagg_run.running.rundir import write_result

if TYPE_CHECKING:
    from disagg_run.running.agent import Agent

#: Kinds of processes in the order in which they are ended where the run ends in order.
_ROUTER, _SERVERS, _REST = ("workload", "router"), ("server",), ("service", "setup")
#: Beside the graces of all stages: for rank 0's last word, and for other ranks' word to rank 0, in seconds.
_LAST_WORD_S = 5.0
_OTHERS_S = 2.0


class Ending:
    """The end of one rank's run; no failing step stops the next one."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        culprit = agent.verdict.culprit
        #: Whether nothing failed: processes get their full grace, one kind after the other.
        self._orderly = culprit is None or culprit.exit_code in SIGNAL_CODES.values()
        self._grace = agent.timing.grace_s if self._orderly else agent.timing.failure_grace_s
        #: What could not be ended, in words.
        self._left: list[str] = []

    async def run(self) -> None:
        """End what this rank started, agree with the other ranks on how it ended, and write that down."""
        agent = self._agent
        culprit = agent.verdict.culprit
        if culprit is not None:
            agent.log.error("run.failed", culprit=culprit.process, culprit_rank=culprit.rank, message=culprit.message)
        await self._end_processes()
        self._left += (await teardown.end_strays(min(self._grace, agent.timing.failure_grace_s))).left
        held = await teardown.open_ports(
            agent.share.processes(), agent.share.rank.node.address, agent.told_to_processes()
        )
        self._left += [each.text for each in held if each.ours]
        for each in held:
            if not each.ours:
                agent.log.info("port.foreign", what=each.text)
        agent.log.info("teardown.done", left=self._left)
        if self._left:
            text = f"teardown left something behind: {'; '.join(self._left)}"
            agent.verdict.spoil(Failure(rank=agent.rank, process=RUN, message=text))
        await self._agree()
        self._write_down()

    async def _end_processes(self) -> None:
        hub = self._agent.hub
        if not self._orderly:
            # The other ranks know by now and do the same.
            await self._end_kinds(*_ROUTER, *_SERVERS, *_REST)
            await self._others()
            return
        await self._end_kinds(*_ROUTER)
        if hub is not None:
            hub.stop(self._agent.verdict.culprit)
        await self._end_kinds(*_SERVERS)
        # Servers of other ranks may need our services to the end.
        await self._others()
        await self._end_kinds(*_REST)

    async def _end_kinds(self, *kinds: str) -> None:
        agent = self._agent
        group = [running for running in agent.supervisor.started if running.plan.kind in kinds]
        if not group:
            return
        swept = await teardown.end(agent.supervisor, group, self._grace, agent.hurry)
        for name in swept.killed:
            agent.log.warning("process.killed", process=name, after_s=self._grace)
        self._left += swept.left

    async def _others(self) -> None:
        """On rank 0: wait until the other ranks have torn down."""
        hub = self._agent.hub
        if hub is None:
            return
        hub.stop(self._agent.verdict.culprit)
        silent = await hub.settled(3 * self._grace + _OTHERS_S)
        self._left += [f"the agent of rank {rank} has not said that it has torn down" for rank in silent]
        self._left += hub.left

    async def _agree(self) -> None:
        """Rank 0 has the last word on how the run ended, so that all ranks end alike."""
        agent = self._agent
        if agent.hub is not None:
            for lost in agent.hub.lost:
                agent.verdict.spoil(lost)
            await agent.hub.close(agent.verdict.culprit)
        elif agent.spoke is not None:
            await agent.spoke.close(self._left, wait_s=4 * self._grace + _LAST_WORD_S)

    def _write_down(self) -> None:
        agent = self._agent
        for each in agent.verdict.consequences:
            agent.log.info("run.consequence", culprit=each.process, culprit_rank=each.rank, message=each.message)
        culprit = agent.verdict.culprit
        if agent.first is not None:
            agent.first.register.set(state="failed" if culprit else "finished", ended=time.time())
        consequences = [each.to_data() for each in agent.verdict.consequences]
        shown_above = agent.options.launched
        try:
            write_result(agent.options.run_dir, agent.rank, culprit, consequences=consequences)
        except OSError as error:
            agent.room.lost(error)
            # A launcher shows what ranks write down.
            shown_above = shown_above and agent.rank != 0
        agent.tails.close()
        if culprit is not None and not shown_above:
            for line in describe(culprit, agent.options.run_dir.path):
                agent.console.write(line)
