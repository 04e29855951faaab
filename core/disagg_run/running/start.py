"""From a plan file and options to a guarded agent."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from disagg_run.errors import DisaggError, RunError, UsageError
from disagg_run.running import environment, guardian, proctree
from disagg_run.running.outcome import AGENT, Exit, Failure
from disagg_run.running.rundir import RunDir, default_path, new_id, write_result
from disagg_run.running.timing import Timing


def start(plan_file: Path, rank: int, options: Mapping[str, Any]) -> int:
    """Run ``rank`` of the plan in ``plan_file`` under a guardian; returns the exit code.

    ``options``: those of ``disagg-run agent``. Raises DisaggError for what is wrong before the agent is started.
    """
    launched = _tie_to_launcher()
    token_file = options.get("token_file")
    if token_file is not None:
        from disagg_run.running.token import read_token

        read_token(token_file, needed=False)  # refused here, in one line, rather than by the agent
    run_id = options.get("run_id") or new_id()

    # The agent alone reads the plan and imports what running needs; the guardian stays small.
    def body() -> int:
        return _agent(plan_file, rank, run_id, options, launched=launched)

    def killed(ended: Exit) -> None:
        text = guardian.killed_text(rank, ended)
        print(f"disagg-run: error: {text}", file=sys.stderr)
        if options.get("run_dir") is not None:
            culprit = Failure(rank=rank, process=AGENT, message=text, signal=ended.signal)
            write_result(RunDir(path=options["run_dir"]), rank, culprit)

    return guardian.guard(body, killed)


def _tie_to_launcher() -> bool:
    """End with the launcher that started us, if one did; whether one did."""
    launcher = os.environ.pop(environment.LAUNCHER, "")
    if not launcher:
        return False
    proctree.signal_on_parent_death(signal.SIGTERM)
    if str(os.getppid()) != launcher:  # it was gone before the line above took hold
        raise RunError("the launcher ended before this agent started")
    return True


def _agent(plan_file: Path, rank: int, run_id: str, options: Mapping[str, Any], *, launched: bool) -> int:
    try:
        return _run(plan_file, rank, run_id, options, launched=launched)
    except DisaggError as error:
        print(f"disagg-run: error: {error}", file=sys.stderr)
        if options.get("run_dir") is not None:
            write_result(RunDir(path=options["run_dir"]), rank, Failure.of(error, rank=rank))
        return error.exit_code


def _run(plan_file: Path, rank: int, run_id: str, options: Mapping[str, Any], *, launched: bool) -> int:
    from disagg_run.planning.document import LaunchPlan
    from disagg_run.running.agent import AgentOptions, run_agent
    from disagg_run.running.share import share_of
    from disagg_run.running.token import read_token

    try:
        text = plan_file.read_bytes()
    except OSError as error:
        raise UsageError(f"the plan file {str(plan_file)!r} cannot be read: {error}") from None
    plan = LaunchPlan.from_json(text)
    share = share_of(plan, rank)
    run_dir = RunDir(path=(options.get("run_dir") or default_path(plan, run_id)).absolute())
    if not plan.bound and not plan.simulated:
        raise RunError("the plan is not bound to nodes", remedy="make it with --nodes")
    token = read_token(options.get("token_file"), needed=len(plan.ranks) > 1)
    os.environ.pop(environment.TOKEN, None)
    star_fd = os.environ.pop(environment.STAR_FD, None)
    del plan, text
    return run_agent(
        AgentOptions(
            share=share,
            run_dir=run_dir,
            run_id=run_id,
            token=token,
            star=_star(options.get("star")),
            star_fd=int(star_fd) if star_fd else None,
            smoke=options.get("smoke"),
            timing=_timing(options),
            launched=launched,
        )
    )


def _star(text: str | None) -> tuple[str, int] | None:
    if text is None:
        return None
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise UsageError(f"--star {text!r} is not HOST:PORT")
    return host.strip("[]"), int(port)


def _timing(options: Mapping[str, Any]) -> Timing:
    named = {
        "grace_s": options.get("grace"),
        "hang_s": options.get("hang_timeout"),
        "join_s": options.get("join_timeout"),
    }
    given = {name: float(value) for name, value in named.items() if value is not None}
    timing = Timing(**given)
    if timing.hang_s < 4 * timing.watch_s:  # a short deadline needs closer looks
        return Timing(**given, watch_s=timing.hang_s / 4)
    return timing
