"""Variables of vLLM's servers, beside those that the connector sets. The router needs none."""

from __future__ import annotations

from collections.abc import Iterator

from disagg_run.addresses import numeric_address
from disagg_run.context import ProcessContext, RankContext
from disagg_run.gpus import visible_gpus
from disagg_run.option_flags import meeting_variables
from disagg_run.rdma import collective_devices
from disagg_run.records import FIXED, EnvSetting
from disagg_run.sources import Layer, Source
from disagg_vllm import held, models, rdma
from disagg_vllm.devices import device, is_amd

#: In every public recipe: no development endpoints.
ALWAYS = {
    "PROXY_STREAM_IDLE_TIMEOUT": "300",
    "VLLM_SERVER_DEV_MODE": "0",
    "VLLM_USE_V1": "1",
}

#: In every public recipe too, for images that cannot be written to. Not without GPUs: byte code is neither found nor
#: kept then, and each of the three processes that a server starts compiles all of torch, transformers and vLLM anew.
IMAGE = {
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONPYCACHEPREFIX": "/tmp/pycache",
}

#: The same for AMD GPUs.
ROCM = {
    "HSA_ENABLE_SDMA": "1",
    "ROCM_PATH": "/opt/rocm",
    "VLLM_ROCM_USE_AITER": "1",
}


def environment(ctx: ProcessContext) -> Iterator[EnvSetting]:
    """The variables of a server."""
    if ctx.process.kind != "server":
        return
    gpus = {} if device(ctx) == "cpu" else IMAGE | ROCM if is_amd(ctx) else IMAGE
    for name, value in (ALWAYS | gpus).items():
        yield EnvSetting(name, value)
    yield from _from_table(ctx)
    yield from _networks(ctx)
    yield from _shared_node(ctx)
    yield from held.variables(ctx)


def _from_table(ctx: ProcessContext) -> Iterator[EnvSetting]:
    chosen: dict[str, EnvSetting] = {}
    for part, path in models.parts(ctx):
        for name, value in part.env.items():
            chosen[name] = EnvSetting(name, value, source=ctx.table_source(f"{path}env.{name}"))
    yield from chosen.values()


def _networks(ctx: ProcessContext) -> Iterator[EnvSetting]:
    """The address that the engine gives others, and the networks of its collectives."""
    if numeric_address(ctx.node.address) is not None:
        # Left to itself it asks for the route to 8.8.8.8, which may be another network's.
        source = _own(ctx, "the node's address")
        yield EnvSetting("VLLM_HOST_IP", ctx.node.address, source=source, per_node=True)
    if ctx.facts and ctx.facts.default_interface:
        source = _own(ctx, "interface of the default route")
        yield EnvSetting("NCCL_SOCKET_IFNAME", ctx.facts.default_interface, source=source)
        yield EnvSetting("GLOO_SOCKET_IFNAME", ctx.facts.default_interface, source=source)
    yield from meeting_variables(ctx)
    devices, source = rdma.devices(ctx)
    if devices:
        yield EnvSetting("NCCL_IB_HCA", collective_devices(ctx, devices), source=source)


def _shared_node(ctx: ProcessContext) -> Iterator[EnvSetting]:
    """What keeps the servers of one node apart; a server that has a node to itself needs none of it."""
    yield from visible_gpus(ctx, device(ctx))
    if "window" in ctx.ports:
        source = _own(ctx, "first port of a window of its own")
        yield EnvSetting("VLLM_PORT", str(ctx.ports["window"]), source=source, option=FIXED)


def _own(ctx: RankContext, why: str) -> Source:
    return Source(layer=Layer.ENGINE, plugin=ctx.engine.name, why=why)
