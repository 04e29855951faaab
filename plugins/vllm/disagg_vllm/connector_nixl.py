"""KV transfer by NIXL (RIXL on AMD): ``vllm-nixl``, behind a router that is told its workers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import attrs

from disagg_run.context import ProcessContext, RankContext
from disagg_run.declarations import Extension, SharedValue
from disagg_run.errors import TopologyError
from disagg_run.hookspecs import hookimpl
from disagg_run.option_flags import implied_flag
from disagg_run.records import FIXED, ContainerNeeds, EnvSetting, Flag, Listener, ServiceProcess
from disagg_run.releases import at_least
from disagg_run.sources import Layer, Source
from disagg_vllm import asked, devices, meaning, models, parallel, rdma, router, settings, ucx
from disagg_vllm.transfer import CONFIG, EXTRA, config_flag, refused_flags

NAME = "vllm-nixl"

#: First release looked at whose peers tell each other their context parallelism (0.28.0 does not).
TELLS_CONTEXT_PARALLEL = "0.30"
#: First release looked at whose servers can push KV of several pipeline stages (0.22.1 has neither).
PUSHES_STAGES = "0.26"
_PUSH = "NixlPushConnector"

#: What else does the same: NIXL's own ways to move KV, NIXL beside a cache, and the one role of older recipes.
AGREEING = {
    "kv_connector": ("NixlPullConnector", _PUSH, "MultiConnector"),
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
    # Later, what each role may have is held in context_parallel().
    parallel.shared_context_parallel(versions=f"<{TELLS_CONTEXT_PARALLEL}"),
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
    check_stages(ctx)
    return [transfer_config(ctx), *context_parallel(ctx), *refused_flags(ctx)]


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


def context_parallel(ctx: ProcessContext) -> Iterator[Flag]:
    """What decode context parallelism a server may have (``VllmConfig``, ``nixl/connector.py`` of 0.30.0 and 0.32.0).

    Each rank has all of the KV, or its share among all ranks, which is for MLA models and where decode fetches KV.
    """
    if not at_least(ctx.engine_version, TELLS_CONTEXT_PARALLEL):
        return
    row = models.body(ctx)
    shared = (row.mla or not row.kv_heads) and not asked.mentions(ctx, _PUSH)
    sizes = (str(parallel.sizes(ctx.role_spec).tp),) if shared else ()
    why = "over NIXL it is 1 or, with an MLA model whose KV decode fetches, the tensor-parallel size"
    yield implied_flag(parallel.CONTEXT_PARALLEL, 1, option=FIXED, why=why, agreeing=sizes)


def check_stages(ctx: ProcessContext) -> None:
    """Refuse pipeline stages whose KV does not move, with TopologyError (``nixl/base_worker.py``)."""
    role, stages = ctx.process.role, ctx.role_spec.pp
    if stages < 2:
        return
    pushes = at_least(ctx.engine_version, PUSHES_STAGES)
    if role == "prefill" and pushes and asked.mentions(ctx, _PUSH):
        return
    problem = f"only {_PUSH} sends the KV of several, from vLLM {PUSHES_STAGES}.0 on"
    by_push = f", or give --args '{CONFIG}.kv_connector {_PUSH}'" if role == "prefill" and pushes else ""
    raise TopologyError(
        f"{role} has {stages} pipeline stages ({ctx.spec.source(f'{role}.pp')}), but"
        f" {problem if role == 'prefill' else 'NIXL takes KV into one alone'}",
        remedy=f"use --{role}-pp 1 with a larger --{role}-tp{by_push}",
    )


def environment(ctx: ProcessContext) -> Iterator[EnvSetting]:
    """The variables of a server; NIXL's own default for the host, localhost, is reached by no other node."""
    yield from ucx.environment(ctx, NAME)
    port = ctx.ports.get("side_channel")
    if port is not None:
        source = rdma.chosen(ctx, "side_channel_port", NAME)
        yield EnvSetting("VLLM_NIXL_SIDE_CHANNEL_PORT", str(port), source=source)
