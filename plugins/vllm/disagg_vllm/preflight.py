"""What a node is asked before vLLM starts on it; a simulated run asks only for free ports."""

from __future__ import annotations

from collections.abc import Iterator

from disagg_run.context import RankContext
from disagg_run.records import Preflight
from disagg_vllm import devices, models

_DRIVERS = {"amd": ("/dev/kfd", "/dev/dri"), "nvidia": ("/dev/nvidiactl",)}


def checks(ctx: RankContext) -> Iterator[Preflight]:
    """The model is there, the GPUs' driver is loaded, and the RDMA devices that were named exist."""
    yield Preflight(
        name="model",
        kind="path_exists",
        target=models.model_dir(ctx)[0],
        remedy="put the model there, or name its place with --model-path or --model-dir",
    )
    for device in _DRIVERS.get(devices.device(ctx), ()):
        yield Preflight(
            name="gpu-driver",
            kind="device_present",
            target=device,
            remedy="load the GPUs' driver, and give the device to the container",
        )
    for device in ctx.spec.ib_devices:
        yield Preflight(
            name="ib-devices",
            kind="path_exists",
            target=f"/sys/class/infiniband/{device}",
            remedy="name the devices that the node has with --ib-devices",
        )
