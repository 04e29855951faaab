"""KV transfer by NIXL (RIXL on AMD): ``vllm-nixl``, behind a router that is told its workers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import attrs

from disagg_run.context import ProcessContext, RankContext
from disagg_run.declarations import Extension, SharedValue
from disagg_run.hookspecs import hookimpl
from disagg_run.records import FIXED, ContainerNeeds, EnvSetting, Flag, Listener, ServiceProcess
from disagg_run.sources import Layer, Source
from disagg_vllm import devices, meaning, models, parallel, rdma, router, settings, ucx
from disagg_vllm.transfer import CONFIG, EXTRA, config_flag

NAME = "vllm-nixl"

#: What else does the same: NIXL's own ways to move KV, NIXL beside a cache, and the one role of older recipes.
AGREEING = {
    "kv_connector": ("NixlPullConnector", "NixlPushConnector", "MultiConnector"),
    "kv_role": ("kv_both",),
}


def unequal_problem(ctx: RankContext, prefill: int, decode: int) -> str:
    """Why KV cannot move between two tensor-parallel sizes; "" where it can.

    Sources of 0.14.1 to 0.32.0: multiples only; several decode ranks may read from one prefill rank, and one decode
    rank from several prefill ranks, unless these hold copies of one KV head.
    """
    if max(prefill, decode) % min(prefill, decode):
        return "NIXL needs one to be a multiple of the other"
    row = models.body(ctx)
    if prefill <= decode or row.mla or (row.kv_heads and prefill <= row.kv_heads):
        return ""
    if row.kv_heads:
        return f"prefill holds copies of the model's {row.kv_heads} KV heads, which NIXL does not take apart"
    return f"it is not known whether prefill's ranks hold copies of KV heads of {ctx.model.name!r}"


#: Beside the engine's own: what peers compare when they first meet (its compatibility hash and the checks after it,
#: sources of 0.32.0), and what they take for granted. Version and model are one for the whole plan.
PARITY = (
    parallel.shared_tensor_parallel(unequal_problem),
    SharedValue(
        name="nixl-transfer-mode",
        flag=CONFIG,
        key=("kv_connector",),
        why="servers that push KV and servers that fetch it refuse each other",
    ),
    SharedValue(
        name="nixl-buffer-device",
        flag=CONFIG,
        key=("kv_buffer_device",),
        why="a peer's memory is taken for one of the same kind",
    ),
    SharedValue(
        name="nixl-backends",
        flag=CONFIG,
        key=(EXTRA, "backends"),
        meaning=meaning.nixl_backends,
        why="one side would speak to a transport that the other has not loaded",
    ),
)


@hookimpl
def disagg_plugin() -> Extension:
    return Extension(
        name=NAME,
        summary="KV transfer between vLLM servers by NIXL over UCX; the router is told its workers",
        kind="connector",
        engines=("vllm-disagg",),
        settings=settings.NIXL,
        parity=PARITY,
    )


@hookimpl
def disagg_services(ctx: RankContext) -> Iterable[ServiceProcess]:
    return rdma.setup(ctx)


@hookimpl
def disagg_readiness(ctx: ProcessContext) -> Iterable[Listener]:
    return side_channel(ctx) if ctx.process.kind == "server" else ()


@hookimpl
def disagg_args(ctx: ProcessContext) -> Iterable[Flag]:
    if ctx.process.kind == "router":
        return router.told_workers(ctx)
    return [transfer_config(ctx)]


@hookimpl
def disagg_env(ctx: ProcessContext) -> Iterable[EnvSetting]:
    return tuple(environment(ctx)) if ctx.process.kind == "server" else ()


@hookimpl
def disagg_container(ctx: RankContext) -> Iterable[ContainerNeeds]:
    return [ContainerNeeds(capabilities=("NET_ADMIN",))] if rdma.route(ctx) else ()


def side_channel(ctx: ProcessContext) -> Iterator[Listener]:
    """One port for each data-parallel rank's scheduler: base + rank, counted over the whole worker.

    A node that holds only a part of a rank has no scheduler of its own.
    """
    size = parallel.sizes(ctx.role_spec)
    if not ctx.process.head and not (size.dp > 1):
        return
    port = ctx.setting("side_channel_port")
    yield Listener(
        name="side_channel",
        default_port=ucx.SIDE_CHANNEL_PORT if port is None else port,
        count=size.dp,
        pinned=port is not None,
        worker_wide=ctx.process.node_count > 1,
        variable="VLLM_NIXL_SIDE_CHANNEL_PORT",
        option="side_channel_port",
        source=rdma.chosen(ctx, "side_channel_port", NAME),
    )


def transfer_config(ctx: ProcessContext) -> Flag:
    """The connector's JSON: either role may send or receive, the router says which by its requests."""
    leaves: dict[str, Any] = {}
    sources: dict[str, Source] = {}
    buffer, source = ctx.setting("kv_buffer_device"), ctx.source("kv_buffer_device")
    if buffer is None and devices.device(ctx) == "cpu":
        buffer, source = "cpu", Source(layer=Layer.CONNECTOR, plugin=NAME, why="the servers compute on the processor")
    if buffer is not None:
        leaves["kv_buffer_device"], sources["kv_buffer_device"] = buffer, source
    backends = ctx.setting("nixl_backends")
    if backends:
        leaves[EXTRA], sources[f"{EXTRA}.backends"] = {"backends": list(backends)}, ctx.source("nixl_backends")
    # One for all servers of a node would be one for several: peers keep what they know of each other by it.
    held = {"engine_id": FIXED} if ctx.shares_node else {}
    config = config_flag(ctx, NAME, "NixlConnector", leaves, sources=sources, held=held)
    return attrs.evolve(config, leaf_agreeing=AGREEING, per_node=("engine_id",))


def environment(ctx: ProcessContext) -> Iterator[EnvSetting]:
    """The variables of a server; NIXL's own default for the host, localhost, is reached by no other node."""
    yield from ucx.environment(ctx, NAME)
    port = ctx.ports.get("side_channel")
    if port is not None:
        source = rdma.chosen(ctx, "side_channel_port", NAME)
        yield EnvSetting("VLLM_NIXL_SIDE_CHANNEL_PORT", str(port), source=source)
