"""The process above the ranks, with one rank whose agent or guardian is killed as the agent begins.

``early.py PLAN RUN_DIR RANK WHOM``, WHOM being ``agent`` or ``guardian``.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import attrs

from disagg_run.launchers import ranks
from disagg_run.planning.document import LaunchPlan
from disagg_run.running.agent import AgentOptions, run_agent
from disagg_run.running.environment import TOKEN
from disagg_run.running.rundir import RunDir
from disagg_run.running.timing import Timing


def main() -> None:
    plan_file, run_dir, rank, whom = sys.argv[1:]

    def begin(options: AgentOptions) -> int:
        if options.share.rank.rank == int(rank):
            os.kill(os.getpid() if whom == "agent" else os.getppid(), signal.SIGKILL)
        return run_agent(options)

    ranks.run_agent = begin
    plan = LaunchPlan.from_json(Path(plan_file).read_text())
    RunDir(path=Path(run_dir)).claim(plan.to_json().encode())
    told = {"run_dir": run_dir, "run_id": "early", "parent": os.getppid(), "smoke": None}
    sys.argv[1:] = [json.dumps({**told, "timing": attrs.asdict(Timing())})]
    os.environ[TOKEN] = "0123456789abcdef"
    ranks.entry()


if __name__ == "__main__":
    main()
