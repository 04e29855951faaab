"""What the KV connectors have in common: the backend's name, the RDMA devices, what both roles must share."""

from __future__ import annotations

from collections.abc import Iterator

from disagg_run.context import ProcessContext, RankContext
from disagg_run.declarations import SharedValue
from disagg_run.records import EnvSetting, Flag, Preflight, flag
from disagg_run.sources import Layer, Source
from disagg_sglang import devices

PARITY = (
    SharedValue(
        name="transfer-backend",
        flag="--disaggregation-transfer-backend",
        why="one side cannot read what the other's backend sends",
    ),
)


def flags(ctx: ProcessContext, plugin: str, backend: str) -> Iterator[Flag]:
    """What a server is told of KV transfer."""
    if ctx.process.role is None:
        return
    yield flag("--disaggregation-transfer-backend", backend)
    names, source = devices.ib_devices(ctx, plugin)
    if names:
        yield flag("--disaggregation-ib-device", ",".join(names), source=source)


def environment(ctx: ProcessContext, plugin: str) -> Iterator[EnvSetting]:
    """The same devices for NCCL, and its GID index where the automatic choice would be wrong."""
    names, source = devices.ib_devices(ctx, plugin)
    if names:
        yield EnvSetting("NCCL_IB_HCA", devices.exact_list(ctx, names), source=source)
    chosen = devices.gid_index(ctx, names)
    if ctx.process.kind == "server" and chosen is not None:
        index = Source(layer=Layer.CONNECTOR, plugin=plugin, why=chosen[1])
        yield EnvSetting("NCCL_IB_GID_INDEX", str(chosen[0]), source=index)


def checks(ctx: RankContext, plugin: str) -> Iterator[Preflight]:
    """The devices are on the node; under simulation none is needed."""
    if ctx.spec.simulate:
        return
    names, _ = devices.ib_devices(ctx, plugin)
    for name in names:
        yield Preflight(
            name="ib-devices",
            kind="path_exists",
            target=f"/sys/class/infiniband/{name}",
            remedy="name the devices that the node has with --ib-devices",
        )
