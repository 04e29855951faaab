"""KV transfer by MoRI: ``sglang-mori``, the connector that AMD's recipes use."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import attrs

from disagg_run.context import ProcessContext, RankContext
from disagg_run.declarations import Extension
from disagg_run.gpus import check_vendor
from disagg_run.hookspecs import hookimpl
from disagg_run.records import EnvSetting, Flag, Preflight
from disagg_run.sources import Layer, Source
from disagg_sglang import models, settings, transfer
from disagg_sglang.devices import device

NAME = "sglang-mori"
BACKEND = "mori"

#: In every public recipe: queue pairs of MoRI-IO, and the engine's threads that fill them.
ALWAYS = {
    "MORI_IO_QP_MAX_CQE": "32768",
    "MORI_IO_QP_MAX_SGE": "2",
    "MORI_IO_TC_DISABLE": "0",
    "SGLANG_MORI_NUM_WORKERS": "4",
    "SGLANG_MORI_QP_PER_TRANSFER": "4",
}
QP_MAX_SEND_WR = 16384
SQ_BACKOFF_TIMEOUT_US = 50000


@hookimpl
def disagg_plugin() -> Extension:
    return Extension(
        name=NAME,
        summary="KV transfer between SGLang servers by MoRI over RDMA",
        kind="connector",
        engines=("sglang-disagg",),
        settings=settings.MORI,
        parity=transfer.PARITY,
    )


@hookimpl
def disagg_args(ctx: ProcessContext) -> Iterable[Flag]:
    check_vendor(ctx, NAME, needed="amd", found=device(ctx), remedy="use --connector sglang-mooncake")
    return tuple(transfer.flags(ctx, NAME, BACKEND))


@hookimpl
def disagg_env(ctx: ProcessContext) -> Iterable[EnvSetting]:
    return tuple(environment(ctx))


@hookimpl
def disagg_preflight(ctx: RankContext) -> Iterable[Preflight]:
    return tuple(transfer.checks(ctx, NAME))


def environment(ctx: ProcessContext) -> Iterator[EnvSetting]:
    """MoRI-IO's limits, and what NCCL needs to use the same devices."""
    for name, value in ALWAYS.items():
        yield EnvSetting(name, value)
    number, source = qp_max_send_wr(ctx)
    yield EnvSetting("MORI_IO_QP_MAX_SEND_WR", str(number), source=source)
    backoff = ctx.setting("mori_sq_backoff_timeout_us")
    source = ctx.set_by("mori_sq_backoff_timeout_us")
    yield EnvSetting("MORI_IO_SQ_BACKOFF_TIMEOUT_US", str(backoff or SQ_BACKOFF_TIMEOUT_US), source=source)
    yield from transfer.environment(ctx, NAME)


def qp_max_send_wr(ctx: ProcessContext) -> tuple[int, Source | None]:
    """Work requests of one queue pair, and why; the model's number is also the most that a job script's variable gets.

    Job scripts export 32768 with the model whose public recipe then takes 32767. What a user says by run file or
    command line stands.
    """
    asked, own = ctx.setting("mori_qp_max_send_wr"), models.body(ctx).io_qp_max_send_wr
    source = ctx.source("mori_qp_max_send_wr")
    place = ctx.table_source("io_qp_max_send_wr")
    if asked is None:
        return (QP_MAX_SEND_WR, None) if own is None else (own, place)
    if own is not None and asked > own and source.layer <= Layer.CONTRACT:
        return own, attrs.evolve(place, why=f"the most with this model; {asked} was asked for by {source}")
    return asked, source
