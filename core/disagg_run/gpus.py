"""Which GPUs of a node a server sees, and who made them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from disagg_run.context import ProcessContext, RankContext
from disagg_run.errors import SpecError
from disagg_run.node_needs import Vendor
from disagg_run.records import EnvSetting

#: Name of the check that an expert waives to plan for GPUs that something is not made for.
VENDOR_CHECK = "gpu-vendor"

#: Name of the check that an expert waives to set two variables that choose GPUs.
VISIBILITY_CHECK = "gpu-visibility"
#: Variables that choose the GPUs a process sees: ROCr's, HIP's, its older name, and CUDA's, which HIP reads too. Each
#: numbers what those before it have left.
VISIBILITY = ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "CUDA_VISIBLE_DEVICES")

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

    Exactly one variable is set and the others do not reach the server: with two, HIP numbers devices twice, and engines
    refuse what differs. Slurm sets ROCR_VISIBLE_DEVICES by itself. For a server that computes on the processor, it is
    only said that no GPU is seen, so that variables by hand are not held against the plan's.
    """
    gpus = ctx.process.gpus
    if vendor == "cpu":
        yield EnvSetting(VISIBILITY[0], implied=True)
        return
    if not (ctx.shares_node or gpus != tuple(range(len(gpus)))):
        return
    shown = "CUDA_VISIBLE_DEVICES" if vendor == "nvidia" else "HIP_VISIBLE_DEVICES"
    yield EnvSetting(shown, ",".join(map(str, gpus)))
    for name in VISIBILITY:
        if name != shown:
            yield EnvSetting(name, op="unset")


def shows_no_gpus(settings: Iterable[EnvSetting]) -> bool:
    """Whether an engine says by ``visible_gpus`` that a process computes on no GPU."""
    return any(each.implied and each.name == VISIBILITY[0] and not each.value for each in settings)
