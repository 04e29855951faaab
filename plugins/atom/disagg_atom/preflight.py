"""What a node is asked before ATOM starts on it."""

from __future__ import annotations

from collections.abc import Iterator

from disagg_run.context import RankContext
from disagg_run.model_files import located
from disagg_run.node_needs import driver_checks, model_check, nic_checks
from disagg_run.records import Preflight


def checks(ctx: RankContext) -> Iterator[Preflight]:
    """The model is there, the GPUs' driver is loaded, and the RDMA devices that were named exist."""
    yield model_check(located(ctx)[0])
    yield from driver_checks("amd")
    # The server takes no list of devices and finds its own, so a missing one only warns.
    yield from nic_checks(ctx.spec.ib_devices, required=False)
