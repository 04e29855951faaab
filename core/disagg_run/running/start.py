"""From a plan file and options to a guarded agent."""

from __future__ import annotations

import contextlib
import os
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import attrs

from disagg_run.errors import DisaggError, RunError, UsageError
from disagg_run.input_files import read_bytes
from disagg_run.running import environment, guardian
from disagg_run.running.obituary import Star, tell_first
from disagg_run.running.outcome import AGENT, Failure
from disagg_run.running.rundir import RunDir, default_path, new_id, write_result
from disagg_run.running.star_socket import STAR_PORT
from disagg_run.running.timing import Timing
from disagg_run.streams import say


@attrs.frozen(kw_only=True)
class Post:
    """Where a rank's agent is started, and who is told where it cannot begin or is killed."""

    rank: int
    #: None = not known.
    run_dir: RunDir | None
    #: How to speak to rank 0's agent, asked where it must hear of something; None = nobody can tell.
    star: Callable[[], Star | None]
    #: Whether a launcher on this machine shows what is written down.
    launched: bool = False

    def report(self, failure: Failure) -> None:
        """Write down a failure of which the agent cannot speak itself, say it, and tell rank 0."""
        if not (self._write(failure) and self.launched):
            say(f"disagg-run: error: {failure.message}")
        star = self.star() if self.rank != 0 else None
        if star is not None:
            tell_first(star, failure)

    def _write(self, failure: Failure) -> bool:
        if self.run_dir is None:
            return False
        try:
            self.run_dir.make()
            write_result(self.run_dir, self.rank, failure)
        except (DisaggError, OSError):  # what failed is said instead
            return False
        return True


def start(plan_file: Path, rank: int, options: Mapping[str, Any]) -> int:
    """Run ``rank`` of the plan in ``plan_file`` under a guardian; returns the exit code.

    ``options``: those of ``disagg-run agent``.
    """
    given = options.get("run_dir")
    environ = dict(os.environ)  # the agent takes the secret out of its own
    # The agent alone reads the plan and imports what running needs; the guardian stays small.
    post = Post(
        rank=rank,
        run_dir=RunDir(path=given.absolute()) if given else None,
        star=lambda: _whereabouts(plan_file, options, environ),
    )
    return guarded(lambda: _run(plan_file, rank, options), post, _timing(options))


def guarded(body: Callable[[], int], post: Post, timing: Timing) -> int:
    """Run ``body``, which runs the agent of ``post``, under a guardian; returns the exit code.

    Its errors become one line; where it is killed or cannot begin, the run directory, if known, and rank 0 are told.
    """
    rank = post.rank

    def agent() -> int:
        try:
            return body()
        except DisaggError as error:
            post.report(Failure.of(error, rank=rank))
            return error.exit_code
        except Exception:  # noqa: BLE001 - a defect of ours: whoever waits for this rank must hear of it
            say(traceback.format_exc().rstrip())
            text = f"the agent of rank {rank} failed: {traceback.format_exc().strip().splitlines()[-1]}"
            post.report(Failure(rank=rank, process=AGENT, message=text))
            return RunError.exit_code

    def killed(ended: guardian.Killed) -> None:
        post.report(
            Failure(
                rank=rank,
                process=AGENT,
                message=f"the agent of rank {rank} {ended.how}",
                exit_code=ended.exit_code,
                signal=ended.signal,
                time=ended.time,
            )
        )

    patience_s = guardian.PATIENCE_S + guardian.GRACES * timing.grace_s
    return guardian.guard(agent, killed, patience_s=patience_s)


def _whereabouts(plan_file: Path, options: Mapping[str, Any], environ: Mapping[str, str]) -> Star | None:
    from disagg_run.planning.document import LaunchPlan
    from disagg_run.planning.reading import read_plan
    from disagg_run.running.token import read_token

    try:
        plan = read_plan(LaunchPlan, read_bytes(plan_file, "plan file"))
        token = read_token(options.get("token_file"), needed=True, environ=environ)
        address = _star(options.get("star")) or (plan.ranks[0].node.address, STAR_PORT)
    except DisaggError:  # the agent has refused it and said so
        return None
    return Star(address=address, digest=plan.digest, token=token)


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
