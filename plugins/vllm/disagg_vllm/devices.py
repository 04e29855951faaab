"""What the engine computes on: the GPUs of a maker, or the processor."""

from __future__ import annotations

from disagg_run.context import RankContext
from disagg_run.gpus import known_vendor
from disagg_run.node_needs import Vendor


def device(ctx: RankContext) -> Vendor:
    """``amd``, ``nvidia`` or ``cpu``: as the user says, else what the node is known to have, else ``amd``.

    The model table is for AMD GPUs. The processor is never guessed: a node whose GPUs are not seen is a broken one more
    often than one without.
    """
    chosen: Vendor | None = ctx.setting("device")
    return chosen or known_vendor(ctx, "amd")


def is_amd(ctx: RankContext) -> bool:
    """Whether the engine computes on AMD GPUs."""
    return device(ctx) == "amd"
