"""KV transfer by Mooncake: ``sglang-mooncake``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from disagg_run.context import ProcessContext, RankContext
from disagg_run.declarations import Extension
from disagg_run.hookspecs import hookimpl
from disagg_run.records import EnvSetting, Flag, Preflight
from disagg_run.sources import Layer, Source
from disagg_sglang import devices, transfer

NAME = "sglang-mooncake"
BACKEND = "mooncake"


@hookimpl
def disagg_plugin() -> Extension:
    return Extension(
        name=NAME,
        summary="KV transfer between SGLang servers by Mooncake over RDMA",
        kind="connector",
        engines=("sglang-disagg",),
        parity=transfer.PARITY,
    )


@hookimpl
def disagg_args(ctx: ProcessContext) -> Iterable[Flag]:
    return tuple(transfer.flags(ctx, NAME, BACKEND))


@hookimpl
def disagg_env(ctx: ProcessContext) -> Iterable[EnvSetting]:
    return tuple(environment(ctx))


@hookimpl
def disagg_preflight(ctx: RankContext) -> Iterable[Preflight]:
    return tuple(transfer.checks(ctx, NAME))


def environment(ctx: ProcessContext) -> Iterator[EnvSetting]:
    """What NCCL needs to use the same devices, and Mooncake's own name for the GID index."""
    yield from transfer.environment(ctx, NAME)
    names, _ = devices.ib_devices(ctx, NAME)
    chosen = devices.gid_index(ctx, names)
    if ctx.process.kind == "server" and chosen is not None:
        source = Source(layer=Layer.CONNECTOR, plugin=NAME, why=chosen[1])
        yield EnvSetting("MC_GID_INDEX", str(chosen[0]), source=source)
