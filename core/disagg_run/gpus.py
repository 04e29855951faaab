"""Which GPUs of a node a server sees, and who made them."""

from __future__ import annotations

from collections.abc import Iterator

from disagg_run.context import ProcessContext, RankContext
from disagg_run.errors import SpecError
from disagg_run.node_needs import Vendor
from disagg_run.records import EnvSetting

#: Name of the check that an expert waives to plan for GPUs that something is not made for.
VENDOR_CHECK = "gpu-vendor"

_MAKERS: dict[Vendor, str] = {"amd": "AMD", "nvidia": "NVIDIA", "cpu": "no"}


def known_vendor(ctx: RankContext, default: Vendor) -> Vendor:
    """Who made the node's GPUs, as far as it is known; ``default`` where it is not."""
    return (ctx.facts.gpu_vendor if ctx.facts else "") or default


def check_vendor(ctx: RankContext, what: str, *, needed: Vendor, found: Vendor, remedy: str) -> None:
    """Refuse a program or library on GPUs that it is not made for: it would only fail once the model is loaded.

    Raises SpecError; nothing is refused under simulation, or where the check is waived.
    """
    if found == needed or ctx.spec.simulate or VENDOR_CHECK in ctx.spec.waive:
        return
    raise SpecError(
        f"{what} is for {_MAKERS[needed]} GPUs, but rank {ctx.rank} ({ctx.node.name or ctx.node.address}) has"
        f" {_MAKERS[found]} GPUs",
        remedy=f"{remedy}, or let it through with --waive {VENDOR_CHECK}",
    )


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
