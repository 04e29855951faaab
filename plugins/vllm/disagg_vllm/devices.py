"""What the engine computes on: the GPUs of a maker, or the processor."""

from __future__ import annotations

from disagg_run.context import RankContext


def device(ctx: RankContext) -> str:
    """``amd``, ``nvidia`` or ``cpu``: as the user says, else what the node is known to have, else ``amd``.

    The model table is for AMD GPUs. The processor is never guessed: a node whose GPUs are not seen is a broken one more
    often than one without.
    """
    chosen: str | None = ctx.setting("device")
    return chosen or (ctx.facts.gpu_vendor if ctx.facts else "") or "amd"


def is_amd(ctx: RankContext) -> bool:
    """Whether the engine computes on AMD GPUs."""
    return device(ctx) == "amd"
