"""Whether a call without a command is one rank's agent of a launch, as a job script starts it on every node."""

from __future__ import annotations

import re
from collections.abc import Mapping

import attrs

from disagg_run.errors import SpecError, UsageError
from disagg_run.spec.model import LaunchSpec
from disagg_run.spec.node_contract import check_node_contract


@attrs.frozen(kw_only=True)
class Acting:
    """The rank that this process is the agent of."""

    rank: int
    #: What said so: ``--rank``, ``NODE_RANK``, ``Slurm step 4242.0``.
    why: str


def acting_rank(spec: LaunchSpec, ranks: int, environ: Mapping[str, str], *, asked: int | None = None) -> Acting | None:
    """The rank to be the agent of; None = the launcher of all ranks on this machine.

    The rank is that of ``asked`` (``--rank``), else of ``NODE_RANK`` where ``IPADDRS`` says which nodes there are, else
    of the Slurm step where it has as many tasks and nodes as the plan has ``ranks``; simulated or not.
    Raises UsageError for a rank that does not fit, and SpecError where the job script's variables do not agree.
    """
    found = _found(spec, ranks, environ, asked)
    if found is None:
        return None
    if found.rank >= len(spec.nodes):
        raise UsageError(
            f"{found.why} says rank {found.rank}, but the launch has {len(spec.nodes)} nodes",
            remedy=f"ranks are 0 to {len(spec.nodes) - 1}, in the order of the nodes",
        )
    check_node_contract(spec, environ)
    return found


def _found(spec: LaunchSpec, ranks: int, environ: Mapping[str, str], asked: int | None) -> Acting | None:
    if asked is not None:
        if not spec.nodes:
            raise UsageError("--rank is given, but no nodes", remedy="name them in rank order with --nodes, or IPADDRS")
        return Acting(rank=asked, why="--rank")
    rank = environ.get("NODE_RANK", "")
    if rank and "IPADDRS" in environ:
        if not environ["IPADDRS"].strip():
            raise SpecError(
                f"environment variable IPADDRS is empty beside NODE_RANK={rank}",
                remedy="the job script's look-up of addresses failed; `disagg-run facts --address` finds a node's own",
            )
        return Acting(rank=_number(rank, "NODE_RANK"), why="NODE_RANK")
    if environ.get("SLURM_STEP_ID") and spec.nodes and _step_fits(environ, ranks):
        step = f"Slurm step {environ.get('SLURM_JOB_ID', '')}.{environ['SLURM_STEP_ID']}"
        return Acting(rank=_number(environ.get("SLURM_PROCID", ""), "SLURM_PROCID"), why=step)
    return None


def _step_fits(environ: Mapping[str, str], ranks: int) -> bool:
    """Whether the step is this launch; one shell on one of the nodes (`srun --pty`) is not."""
    return all(_counted(environ, what) == ranks for what in ("TASKS", "NODES"))


def _counted(environ: Mapping[str, str], what: str) -> int | None:
    name = f"SLURM_STEP_NUM_{what}"
    text = environ.get(name, "")
    return _number(text, name, f"number of {what.lower()}") if text else None


def _number(text: str, name: str, what: str = "rank") -> int:
    if not re.fullmatch("[0-9]{1,12}", text):
        raise SpecError(
            f"environment variable {name}: {text[:40]!r} is no {what}, which is a whole number from 0",
            remedy="Slurm sets it: leave it as it is" if name.startswith("SLURM_") else "",
        )
    return int(text)


def step_id(environ: Mapping[str, str]) -> str:
    """An id that all ranks of a Slurm step know, and no other step has; "" = this is none.

    Raises SpecError for what Slurm would not have set: the id is part of the run directory's name.
    """
    if not (environ.get("SLURM_JOB_ID") and environ.get("SLURM_STEP_ID")):
        return ""
    job, step = (_number(environ[name], name, "id") for name in ("SLURM_JOB_ID", "SLURM_STEP_ID"))
    restart = _number(environ.get("SLURM_RESTART_COUNT") or "0", "SLURM_RESTART_COUNT", "count")
    return f"{job}.{step}.{restart}" if restart else f"{job}.{step}"
