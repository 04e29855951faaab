"""KV transfer by Mooncake: ``sglang-mooncake``."""

from __future__ import annotations

from collections.abc import Iterable

from disagg_run.context import ProcessContext, RankContext
from disagg_run.declarations import Extension
from disagg_run.hookspecs import hookimpl
from disagg_run.records import EnvSetting, Flag, Preflight
from disagg_sglang import transfer

NAME = "sglang-mooncake"
BACKEND = "mooncake"

#: Where Mooncake waits instead of at the address that the engine gives it.
_ADDRESSES = tuple(
    EnvSetting(name, implied=True, per_node=True) for name in ("MC_TCP_BIND_ADDRESS", "MC_RDMA_BIND_ADDRESS")
)


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
    # Mooncake has a name of its own for the GID index.
    return (*transfer.environment(ctx, NAME, "MC_GID_INDEX"), *_ADDRESSES)


@hookimpl
def disagg_preflight(ctx: RankContext) -> Iterable[Preflight]:
    return tuple(transfer.checks(ctx, NAME))
