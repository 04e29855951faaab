"""What a node is asked before ATOM starts on it; under simulation nothing, for no model and no GPU is needed then."""

from __future__ import annotations

from collections.abc import Iterator

from disagg_run.context import RankContext
from disagg_run.records import Preflight


def checks(ctx: RankContext) -> Iterator[Preflight]:
    """The model is there, the GPUs' driver is loaded, and the RDMA devices that were named exist."""
    if ctx.spec.simulate:
        return
    yield Preflight(
        name="model",
        kind="path_exists",
        target=ctx.model_path,
        remedy="put the model there, or name its place with --model-path or --model-dir",
    )
    for device in ("/dev/kfd", "/dev/dri"):
        yield Preflight(
            name="gpu-driver",
            kind="device_present",
            target=device,
            remedy="load the amdgpu driver, and give the device to the container",
        )
    for device in ctx.spec.ib_devices:
        yield Preflight(
            name="ib-devices",
            kind="path_exists",
            target=f"/sys/class/infiniband/{device}",
            remedy="name the devices that the node has with --ib-devices; the server itself finds its own",
            required=False,
        )
