"""What a node is asked before SGLang starts on it."""

from __future__ import annotations

from collections.abc import Iterator

from disagg_run.context import RankContext
from disagg_run.model_files import located
from disagg_run.node_needs import driver_checks, model_check
from disagg_run.records import Preflight
from disagg_sglang import hicache
from disagg_sglang.devices import device

#: Name of the check of the memory that HiCache takes.
MEMORY_CHECK = "host-memory"


def checks(ctx: RankContext) -> Iterator[Preflight]:
    """The model is there, the GPUs' driver is loaded, and host memory holds what HiCache was given."""
    yield model_check(located(ctx)[0])
    yield from driver_checks(device(ctx))
    budget = ctx.setting("total_cpu_dram_gb", role="prefill")
    prefills = any(name.startswith("prefill-") for name in ctx.servers)
    ratio = ctx.setting("force_hicache_ratio", False, role="prefill")
    if budget is not None and hicache.enabled(ctx) and prefills and not ratio:
        yield Preflight(
            name=MEMORY_CHECK,
            kind="memory_free",
            target=str(int(budget * 10**9)),
            remedy="lower total_cpu_dram_gb: that much memory of the node is not free",
        )
