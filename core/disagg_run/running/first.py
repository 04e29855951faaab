"""What only rank 0's agent does: say what is waited for, prove a generation, run the workload, end the run."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from disagg_run.errors import WorkloadError
from disagg_run.running.agent_mark import agent_mark
from disagg_run.running.gates import Stage
from disagg_run.running.register import Register
from disagg_run.running.room import writing
from disagg_run.running.rundir import write_json
from disagg_run.running.serving import canary
from disagg_run.running.star import Hub
from disagg_run.streams import show

if TYPE_CHECKING:
    from disagg_run.running.agent import Agent

#: Processes named in one line of progress.
_NAMED = 8


class FirstRank:
    """Rank 0's part."""

    def __init__(self, agent: Agent, hub: Hub) -> None:
        self._agent = agent
        self._hub = hub
        self.register = Register(agent.share, agent.options.run_dir, agent.options.run_id, agent.room.lost)
        self._serving = False
        hub.on_state = self._state
        hub.on_join = self.register.agent

    def _state(self, state: Mapping[str, Any]) -> None:
        if "stage" in state:
            self._agent.board.reach(state["process"], state["stage"])
        self.register.state(state)

    async def serve(self) -> None:
        """Wait until all is ready, then canary, smoke test and workloads; without these two, serve on."""
        agent = self._agent
        self.register.agent(0, agent_mark())
        await self._hub.joined()
        ready: Stage = "ready"
        await agent.board.wait([(name, ready) for name, each in agent.share.roster.items() if each.kind != "workload"])
        where = agent.share.entrance
        if where is not None:
            took = await canary(agent.prober, where, agent.timing)
            agent.log.info("canary.passed", process=where.process, after_s=round(took, 3))
        self._serving = True
        self.register.set(state="serving", url=where.base if where else "")
        agent.log.info("run.serving", url=where.base if where else "")
        workloads = [process for process in agent.share.processes() if process.kind == "workload"]
        if agent.options.smoke is not None:
            await self._smoke(agent.options.smoke)
        for process in workloads:
            running = agent.bring_up.run(process)
            await running.exited.wait()
            if running.exit is None or running.exit.code != 0:
                agent.blame(WorkloadError(f"{process.name} {running.exit}"), process.name)
                return
        if agent.options.smoke is not None or workloads:
            agent.verdict.finish()
        elif where is not None:
            show(f"serving {where.model} at {where.base}; Ctrl-C ends it. Try:\n{where.curl()}")
        else:
            show("all workers are ready for a router that is started elsewhere; Ctrl-C ends them")

    async def _smoke(self, count: int) -> None:
        from disagg_run.running.smoke import check, smoke

        agent = self._agent
        where = agent.share.entrance
        if where is None:
            raise WorkloadError("a smoke test needs a router, and the plan has none")
        result = await smoke(agent.client, where, count, agent.timing.request_s)
        show(result.table())
        check(result)
        with writing(agent.options.run_dir.smoke, "the figures of the smoke test"):
            write_json(agent.options.run_dir.smoke, result.to_data())

    async def progress(self) -> None:
        """Say what is waited for and for how long, until the run serves."""
        agent = self._agent
        start = time.monotonic()
        while True:
            await asyncio.sleep(agent.timing.progress_s)
            if self._serving:
                return
            agent.console.write(f"waiting for {time.monotonic() - start:.0f} s: {self._awaited() or 'the canary'}")

    def _awaited(self) -> str:
        agent = self._agent
        missing = self._hub.missing()
        if missing:
            refused = f" ({self._hub.refused})" if self._hub.refused else ""
            return f"the agents of rank {', '.join(map(str, missing[:_NAMED]))}{refused}"
        parts = []
        for name, brief in agent.share.roster.items():
            if brief.kind != "workload" and not agent.board.reached(name, "ready"):
                stage = agent.board.stage(name)
                what = f"{stage}, to prove {' and '.join(brief.targets)}" if stage != "planned" else "not started"
                lack = next((each.lack for each in agent.supervisor.started if each.name == name), "")
                what = f"{stage}: {lack}" if lack else what
                parts.append(f"{name} (rank {brief.rank}, {what})")
        more = f" and {len(parts) - _NAMED} more" if len(parts) > _NAMED else ""
        return ", ".join(parts[:_NAMED]) + more
