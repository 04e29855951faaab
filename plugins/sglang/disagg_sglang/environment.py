"""Variables of SGLang's servers, and of the router, which runs beside them in the same image and environment."""

from __future__ import annotations

from collections.abc import Iterator

from disagg_run.context import ProcessContext
from disagg_run.gpus import visible_gpus
from disagg_run.records import EnvSetting
from disagg_run.sources import Layer, Source
from disagg_sglang import dispatch, held, hicache, models, speculation, versions
from disagg_sglang.devices import device, is_amd

#: In every public recipe. Timeouts are in seconds.
ALWAYS = {
    "NCCL_BLOCKING_WAIT": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
    "SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT": "3600",
    "SGLANG_DISAGGREGATION_WAITING_TIMEOUT": "3600",
    "SGLANG_ENABLE_OVERLAP_PLAN_STREAM": "0",
    "SGLANG_ENABLE_SPEC_V2": "1",
    "SGLANG_HEALTH_CHECK_TIMEOUT": "600",
    "SGLANG_LOG_MS": "true",
    "TORCH_NCCL_BLOCKING_WAIT": "1",
}

#: The same for AMD GPUs.
ROCM = {
    "AITER_LOG_LEVEL": "ERROR",
    "MORI_APP_LOG_LEVEL": "WARNING",
    "MORI_EP_LAUNCH_CONFIG_MODE": "AUTO",
    "MORI_SHMEM_MODE": "ISOLATION",
    "SGLANG_MORI_DISPATCH_DTYPE": "auto",
    "SGLANG_USE_AITER": "1",
}

#: Where the public images have AITER.
AITER_DIR = "/sgl-workspace/aiter"


def environment(ctx: ProcessContext) -> Iterator[EnvSetting]:
    """The variables of a server, or of the router."""
    for name, value in ALWAYS.items():
        yield EnvSetting(name, value)
    for name, value in versions.decode_slots_variable(ctx.engine_version).items():
        yield EnvSetting(name, value)
    if is_amd(ctx):
        yield from _rocm(ctx)
    yield from _network(ctx)
    if ctx.process.kind == "router":
        yield EnvSetting("NO_COLOR", "1")
    elif ctx.process.role is not None:
        yield from _server(ctx)


def _rocm(ctx: ProcessContext) -> Iterator[EnvSetting]:
    """What belongs to AMD's libraries, the model table's variables among it."""
    for name, value in ROCM.items():
        yield EnvSetting(name, value)
    yield EnvSetting("PYTHONPATH", ctx.setting("aiter_dir", AITER_DIR), op="prepend", source=ctx.set_by("aiter_dir"))
    for name, value in models.body(ctx).env.items():
        yield EnvSetting(name, value, source=ctx.table_source(f"env.{name}"))
    yield from dispatch.rank_settings(ctx)
    if ctx.process.role is None:
        return
    yield from dispatch.role_settings(ctx, ctx.process.role)
    mode, path = models.mode(ctx)
    for name, value in mode.env.items():
        yield EnvSetting(name, value, source=ctx.table_source(f"{path}.env.{name}"))


def _network(ctx: ProcessContext) -> Iterator[EnvSetting]:
    """The device over which processes find each other; not said where the node is not known."""
    interface = ctx.facts.default_interface if ctx.facts else ""
    if interface:
        source = Source(layer=Layer.ENGINE, plugin=ctx.engine.name, why="the node's default route")
        yield EnvSetting("NCCL_SOCKET_IFNAME", interface, source=source)
        yield EnvSetting("GLOO_SOCKET_IFNAME", interface, source=source)
    traffic_class = ctx.setting("rdma_traffic_class")
    if traffic_class is not None:
        yield EnvSetting("MORI_RDMA_TC", str(traffic_class), source=ctx.source("rdma_traffic_class"))


def _server(ctx: ProcessContext) -> Iterator[EnvSetting]:
    # Left to itself the engine asks for the route to 8.8.8.8, and fails where there is none.
    address = Source(layer=Layer.ENGINE, plugin=ctx.engine.name, why="the node's address")
    yield EnvSetting("SGLANG_HOST_IP", ctx.node.address, source=address, per_node=True)
    if ctx.process.role == "decode":
        yield from speculation.pretended_acceptance(ctx)
    yield from visible_gpus(ctx, device(ctx))
    yield from held.server_variables(ctx)
    yield from hicache.server_variables(ctx)
