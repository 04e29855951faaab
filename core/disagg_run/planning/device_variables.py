"""Variables of a finished process that choose devices: GPUs that are hidden twice, names that mean more devices."""

from __future__ import annotations

from collections.abc import Iterator

from disagg_run.context import ProcessContext
from disagg_run.errors import SpecError
from disagg_run.gpus import VISIBILITY, VISIBILITY_CHECK
from disagg_run.plain_text import listed
from disagg_run.planning.environment import MergedEnv
from disagg_run.rdma import COLLECTIVE_DEVICES, further_matches


def check_visibility(env: MergedEnv, ctx: ProcessContext) -> None:
    """Refuse two variables that both choose GPUs: the second counts in what the first has left, and finds none.

    Raises SpecError naming both; nothing is refused where the check is waived.
    """
    chosen = [name for name in VISIBILITY if name in env.env]
    if len(chosen) < 2 or VISIBILITY_CHECK in ctx.spec.waive:
        return
    said = " and ".join(f"{name}={env.env[name]} ({env.provenance[f'env/{name}'][0][0]})" for name in chosen)
    raise SpecError(
        f"{ctx.process.name} is given {said}, of which the second counts in what the first has left",
        remedy=f"set one of them, or let both through with --waive {VISIBILITY_CHECK}",
    )


def device_remarks(env: MergedEnv, ctx: ProcessContext) -> Iterator[str]:
    """A warning for a list of RDMA devices that stands for more devices of the node than it names."""
    value = env.env.get(COLLECTIVE_DEVICES, "")
    more = further_matches(ctx, value) if value else ()
    if more:
        mark = "^=" if value.startswith("^") else "="
        yield (
            f"{COLLECTIVE_DEVICES} is {value!r} ({env.provenance[f'env/{COLLECTIVE_DEVICES}'][0][0]}), which stands for"
            f" {listed(more, 3)} of rank {ctx.rank} too: write {mark + value.lstrip('^')!r} to mean those names alone"
        )
