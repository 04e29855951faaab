"""What the engine computes on: the GPUs of a maker. The model table is for AMD's."""

from __future__ import annotations

from disagg_run.context import RankContext
from disagg_run.gpus import known_vendor
from disagg_run.node_needs import Vendor


def device(ctx: RankContext) -> Vendor:
    """``amd`` or ``nvidia``: what the node is known to have, else ``amd``."""
    return known_vendor(ctx, "amd")


def is_amd(ctx: RankContext) -> bool:
    """Whether the engine computes on AMD GPUs."""
    return device(ctx) == "amd"


def table_remark(ctx: RankContext) -> str:
    """What to know of a plan for GPUs that the model table is not for; "" = nothing."""
    if is_amd(ctx):
        return ""
    return (
        f"the values of {ctx.model.name!r} are for AMD GPUs: on others its attention backend, its experts' all-to-all"
        " and its variables are left to the engine, so give what fits by --args and --env"
    )
