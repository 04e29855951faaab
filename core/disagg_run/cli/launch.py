"""The bare form, ``disagg-run …`` without a command: make the plan and launch it, or one rank of it."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from disagg_run import streams
from disagg_run.cli.output import emit, remark
from disagg_run.cli.plan import plan_asked, render
from disagg_run.errors import RunError, UsageError
from disagg_run.spec.environment import UNSET, contract_place
from disagg_run.spec.values import switch
from disagg_run.streams import drop

if TYPE_CHECKING:
    from disagg_run.planning.document import LaunchPlan
    from disagg_run.running.acting import Acting


def launch(given: Mapping[str, Any]) -> int:
    """Plan, print the plan, and launch it unless only the plan is asked for; returns the exit code.

    Where a job script calls it on every node, it becomes the agent of its own rank.
    """
    from disagg_run.running.acting import acting_rank

    for name in ("run_dir", "token_file"):
        if given[name] is not None and not given[name].strip():
            raise UsageError(f"--{name.replace('_', '-')} names no file", remedy="leave it out, or give its path")
    dry = given["dry_run"] or _dry_run(os.environ)
    spec, plan = plan_asked(given)
    acting = acting_rank(spec, len(plan.ranks), os.environ, asked=given["rank"])
    if acting is None or acting.rank == 0 or dry:
        try:
            emit(render(plan, "table"))
        except BrokenPipeError:
            if dry:
                raise
            drop(1)  # the reader has gone (`| head`), but the launch is what was asked for
    if dry:
        if not given["dry_run"]:
            remark("nothing is started: the environment says DRY_RUN")
        return 0
    if acting is not None:
        return _run_rank(plan, acting, given)
    from disagg_run.running.launch import LaunchOptions, run

    run_dir, token_file = (None if given[name] is None else Path(given[name]) for name in ("run_dir", "token_file"))
    return run(plan, LaunchOptions(smoke=given["smoke"], run_dir=run_dir, token_file=token_file))


def _dry_run(environ: Mapping[str, str]) -> bool:
    """Whether the contract's ``DRY_RUN`` asks for the plan alone; a text that is neither yes nor no starts nothing."""
    text = environ.get("DRY_RUN", "")
    return text not in UNSET and bool(contract_place("DRY_RUN").read(switch, text))


def _run_rank(plan: LaunchPlan, acting: Acting, given: Mapping[str, Any]) -> int:
    """Become ``disagg-run agent`` for one rank of ``plan``; returns only where there is nothing to do."""
    from disagg_run.running import sockets
    from disagg_run.running.acting import step_id
    from disagg_run.running.room import writing
    from disagg_run.running.rundir import RunDir, default_path, new_id

    rank = acting.rank
    if rank >= len(plan.ranks):
        remark(f"rank {rank} ({acting.why}) has nothing to do: the plan needs {len(plan.ranks)} nodes")
        return 0
    address = plan.ranks[rank].node.address
    if not sockets.is_local(address):
        raise RunError(
            f"{acting.why} says rank {rank}, which is on {address}, but that is no address of this machine",
            remedy="list the nodes in the order of their ranks",
        )
    step = step_id(os.environ)
    run_id = step or new_id()
    shared = Path.cwd() / "runs" / f"{run_id}-{plan.engine}" if step else default_path(plan, run_id)
    run_dir = RunDir(path=(shared if given["run_dir"] is None else Path(given["run_dir"])).absolute())
    run_dir.make()
    # Ranks may share the directory, and none may read what another is just writing.
    file = run_dir.path / f"plan.rank{rank}.json" if rank else run_dir.plan
    with writing(file, "the plan"):
        file.write_bytes(plan.to_json().encode("utf-8", "surrogatepass"))
    remark(f"rank {rank} ({acting.why}) in {run_dir.path}")
    words = ["agent", "--plan", str(file), "--rank", str(rank), "--run-dir", str(run_dir.path)]
    words += ["--run-id", run_id]
    for name in ("star", "token_file", "smoke"):
        if given[name] is not None:
            words += [f"--{name.replace('_', '-')}", str(given[name])]
    return _become(words)


def _become(words: list[str]) -> NoReturn:
    """Go on as another call of the command: an agent needs no plugin, and the guardian that it forks stays small."""
    streams.flush()
    os.execv(sys.executable, [sys.executable, "-m", "disagg_run", *words])
