"""From a plan file and options to a guarded agent."""

from __future__ import annotations

import contextlib
import os
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from disagg_run.errors import DisaggError, RunError, UsageError
from disagg_run.input_files import read_bytes
from disagg_run.running import environment, guardian
from disagg_run.running.outcome import AGENT, Failure
from disagg_run.running.rundir import RunDir, default_path, new_id, write_result
from disagg_run.running.timing import Timing
from disagg_run.streams import say


def start(plan_file: Path, rank: int, options: Mapping[str, Any]) -> int:
    """Run ``rank`` of the plan in ``plan_file`` under a guardian; returns the exit code.

    ``options``: those of ``disagg-run agent``.
    """
    given = options.get("run_dir")
    # The agent alone reads the plan and imports what running needs; the guardian stays small.
    run_dir = RunDir(path=given.absolute()) if given else None
    return guarded(lambda: _run(plan_file, rank, options), rank, run_dir, _timing(options))


def guarded(body: Callable[[], int], rank: int, run_dir: RunDir | None, timing: Timing) -> int:
    """Run ``body``, which runs the agent of ``rank``, under a guardian; returns the exit code.

    Its errors become one line; where it is killed or cannot begin, the run directory, if known, says so.
    """

    def agent() -> int:
        try:
            return body()
        except DisaggError as error:
            say(f"disagg-run: error: {error}")
            _write(run_dir, rank, Failure.of(error, rank=rank))
            return error.exit_code
        except Exception:  # noqa: BLE001 - a defect of ours: whoever waits for this rank must hear of it
            say(traceback.format_exc().rstrip())
            text = f"the agent of rank {rank} failed: {traceback.format_exc().strip().splitlines()[-1]}"
            _write(run_dir, rank, Failure(rank=rank, process=AGENT, message=text))
            return RunError.exit_code

    def killed(ended: guardian.Killed) -> None:
        text = f"the agent of rank {rank} {ended.how}"
        say(f"disagg-run: error: {text}")
        _write(run_dir, rank, Failure(rank=rank, process=AGENT, message=text, signal=ended.signal))

    patience_s = guardian.PATIENCE_S + guardian.GRACES * timing.grace_s
    return guardian.guard(agent, killed, patience_s=patience_s)


def _write(run_dir: RunDir | None, rank: int, failure: Failure) -> None:
    if run_dir is None:
        return
    try:
        run_dir.make()
        write_result(run_dir, rank, failure)
    except (DisaggError, OSError) as error:
        say(f"disagg-run: error: {error}")


def _run(plan_file: Path, rank: int, options: Mapping[str, Any]) -> int:
    from disagg_run.planning.document import LaunchPlan
    from disagg_run.planning.reading import read_plan
    from disagg_run.running.agent import AgentOptions, run_agent
    from disagg_run.running.share import check_runnable, share_of
    from disagg_run.running.token import read_token

    text = read_bytes(plan_file, "plan file")
    plan = read_plan(LaunchPlan, text, what=f"the plan file {str(plan_file)!r}")
    check_runnable(plan)
    run_id = options.get("run_id") or new_id()
    run_dir = RunDir(path=(options.get("run_dir") or default_path(plan, run_id)).absolute())
    token = read_token(options.get("token_file"), needed=len(plan.ranks) > 1)
    os.environ.pop(environment.TOKEN, None)
    star, share = _star(options.get("star")), share_of(plan, rank)
    if rank == 0:
        run_dir.make()
        with contextlib.suppress(OSError):
            run_dir.plan.write_bytes(text)
    say(f"run directory: {run_dir.path}")
    agent = AgentOptions(
        share=share,
        run_dir=run_dir,
        run_id=run_id,
        token=token,
        star=star,
        smoke=options.get("smoke"),
        timing=_timing(options),
    )
    del plan, text
    return run_agent(agent)


def _star(text: str | None) -> tuple[str, int] | None:
    if text is None:
        return None
    host, _, port = text.rpartition(":")
    if not host or not (port.isascii() and port.isdigit()) or not 0 < int(port) < 65536:
        raise UsageError(f"--star {text!r} is not HOST:PORT")
    return host.strip("[]"), int(port)


def _timing(options: Mapping[str, Any]) -> Timing:
    named = {"grace_s": "grace", "hang_s": "hang_timeout", "join_s": "join_timeout"}
    return Timing(**{name: float(options[key]) for name, key in named.items() if options.get(key) is not None})
