"""Which GPUs of a node a server sees, and who made them."""

from __future__ import annotations

from collections.abc import Iterator

from disagg_run.context import ProcessContext, RankContext
from disagg_run.node_needs import Vendor
from disagg_run.records import EnvSetting


def known_vendor(ctx: RankContext, default: Vendor) -> Vendor:
    """Who made the node's GPUs, as far as it is known; ``default`` where it is not."""
    return (ctx.facts.gpu_vendor if ctx.facts else "") or default


def visible_gpus(ctx: ProcessContext, vendor: Vendor) -> Iterator[EnvSetting]:
    """What shows a server its own GPUs alone; nothing where it has the first ones of a node to itself.

    Exactly one variable of the two is set: with both, HIP numbers devices twice, and engines refuse what differs.
    """
    gpus = ctx.process.gpus
    if vendor == "cpu" or not (ctx.shares_node or gpus != tuple(range(len(gpus)))):
        return
    shown, hidden = ("CUDA", "HIP") if vendor == "nvidia" else ("HIP", "CUDA")
    yield EnvSetting(f"{shown}_VISIBLE_DEVICES", ",".join(map(str, gpus)))
    yield EnvSetting(f"{hidden}_VISIBLE_DEVICES", op="unset")
