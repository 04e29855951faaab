"""``run(plan)``: show the plan, start an agent for each rank on this machine, and say how it ended."""

from __future__ import annotations

from pathlib import Path

import attrs

from disagg_run.errors import RunError
from disagg_run.planning.document import LaunchPlan
from disagg_run.running.timing import Timing
from disagg_run.streams import show


@attrs.frozen(kw_only=True)
class LaunchOptions:
    """How a plan is run."""

    #: Streamed completions to send once serving, then end; None = serve until Ctrl-C (or run the plan's workloads).
    smoke: int | None = None
    #: Run directory; None = ``runs/<time>-<engine>-<id>`` under the current directory.
    run_dir: Path | None = None
    #: File of mode 0600 with the secret of the agents' connections; None = a new secret for each run.
    token_file: Path | None = None
    #: Whether the plan is printed first, as a table on stdout.
    show_plan: bool = False
    timing: Timing = attrs.field(factory=Timing)


def run(plan: LaunchPlan, options: LaunchOptions | None = None) -> int:
    """Run ``plan`` on this machine and return the exit code: 0, or that of the first failure (errors.py).

    Raises RunError where the plan has no nodes, or nodes that are not this machine.
    """
    from disagg_run.launchers.local import start_ranks
    from disagg_run.running import sockets
    from disagg_run.running.share import check_runnable

    options = options or LaunchOptions()
    check_runnable(plan)
    away = sorted({rank.node.address for rank in plan.ranks if not sockets.is_local(rank.node.address)})
    if away:
        # A simulation is for this machine, so that its nodes are hardly meant to be others.
        lent = f"lend it these for a while (ip address add {away[0]} dev lo, …)"
        remedy = (
            f"leave the nodes out, and a simulation has addresses of this machine, or {lent}"
            if plan.simulated
            else "start 'disagg-run agent --plan FILE --rank N --star HOST:PORT --token-file FILE' on each node"
        )
        raise RunError(
            f"the plan has nodes that are not this machine: {', '.join(away[:4])}{' …' if len(away) > 4 else ''}",
            remedy=remedy,
        )
    if plan.simulated:
        from disagg_run.running.preflight import check_modules

        # All ranks are here, and none of them needs to be started to know it.
        check_modules(process for rank in plan.ranks for process in rank.processes())
    if options.show_plan:
        from disagg_run.render import render_table

        show(render_table(plan))
    return start_ranks(plan, options)


launch = run
