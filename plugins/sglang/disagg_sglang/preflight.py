"""What a node is asked before SGLang starts on it; under simulation nothing, for no model and no GPU is needed then."""

from __future__ import annotations

from collections.abc import Iterator

from disagg_run.context import RankContext
from disagg_run.records import Preflight
from disagg_sglang import hicache


def checks(ctx: RankContext) -> Iterator[Preflight]:
    """The model is there, the GPUs' driver is loaded, and host memory holds what HiCache was given."""
    if ctx.spec.simulate:
        return
    yield Preflight(
        name="model",
        kind="path_exists",
        target=ctx.model_path,
        remedy="put the model there, or name its place with --model-path or --model-dir",
    )
    nvidia = ctx.facts is not None and ctx.facts.gpu_vendor == "nvidia"
    for device in ("/dev/nvidiactl",) if nvidia else ("/dev/kfd", "/dev/dri"):
        yield Preflight(
            name="gpu-driver",
            kind="device_present",
            target=device,
            remedy="load the GPUs' driver, and give the device to the container",
        )
    budget = ctx.setting("total_cpu_dram_gb", role="prefill")
    prefills = any(name.startswith("prefill-") for name in ctx.servers)
    ratio = ctx.setting("force_hicache_ratio", False, role="prefill")
    if budget is not None and hicache.enabled(ctx) and prefills and not ratio:
        yield Preflight(
            name="host-memory",
            kind="memory_free",
            target=str(int(budget * 10**9)),
            remedy="lower total_cpu_dram_gb: that much memory of the node is not free",
        )
