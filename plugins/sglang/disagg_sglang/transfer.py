"""What the KV connectors have in common: the backend's name, the RDMA devices, what both roles must share."""

from __future__ import annotations

from collections.abc import Iterator

from disagg_run import rdma
from disagg_run.context import ProcessContext, RankContext
from disagg_run.declarations import SharedValue
from disagg_run.node_needs import forced_gid, nic_checks
from disagg_run.records import EnvSetting, Flag, Preflight, flag
from disagg_run.sources import Layer, Source

PARITY = (
    SharedValue(
        name="transfer-backend",
        flag="--disaggregation-transfer-backend",
        why="one side cannot read what the other's backend sends",
    ),
)


def devices(ctx: RankContext, plugin: str) -> tuple[tuple[str, ...], Source]:
    """The RDMA devices that carry KV, and who chose them; () = the engine chooses. SpecError where some are missing."""
    rdma.check_devices(ctx)
    return rdma.devices(ctx, Source(layer=Layer.CONNECTOR, plugin=plugin))


def flags(ctx: ProcessContext, plugin: str, backend: str) -> Iterator[Flag]:
    """What a server is told of KV transfer."""
    if ctx.process.role is None:
        return
    yield flag("--disaggregation-transfer-backend", backend)
    names, source = devices(ctx, plugin)
    rdma.check_meeting(ctx, names, remedy="let both use one device by --ib-devices NAME")
    if names:
        yield flag("--disaggregation-ib-device", ",".join(names), source=source)


def environment(ctx: ProcessContext, plugin: str, *gid_variables: str) -> Iterator[EnvSetting]:
    """The same devices for NCCL, and where the automatic GID index would be wrong, that, in ``gid_variables`` too."""
    names, source = devices(ctx, plugin)
    if names:
        yield EnvSetting("NCCL_IB_HCA", rdma.collective_devices(ctx, names), source=source)
    forced = forced_gid(rdma.known_nics(ctx, names)) if ctx.process.kind == "server" else None
    if forced is not None:
        index, why = forced
        for name in ("NCCL_IB_GID_INDEX", *gid_variables):
            yield EnvSetting(name, str(index), source=Source(layer=Layer.CONNECTOR, plugin=plugin, why=why))


def checks(ctx: RankContext, plugin: str) -> Iterator[Preflight]:
    """The devices are on the node."""
    names, _ = devices(ctx, plugin)
    yield from nic_checks(names)
