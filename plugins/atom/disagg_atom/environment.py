"""Variables of ATOM's servers and of the router beside them, which runs in the same image with the same environment."""

from __future__ import annotations

from collections.abc import Iterator

from disagg_atom import held, models
from disagg_atom.listeners import DP_MASTER_PORT
from disagg_run.context import ProcessContext
from disagg_run.gpus import visible_gpus
from disagg_run.records import EnvSetting

#: In every public recipe: quiet logs, no byte code written, output at once, weights straight to the GPU.
ALWAYS = {
    "AITER_LOG_LEVEL": "WARNING",
    "ATOM_LOG_LEVEL": "WARNING",
    "LOGLEVEL": "WARNING",
    "LOG_LEVEL": "WARNING",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONUNBUFFERED": "1",
    "SAFETENSORS_FAST_GPU": "1",
    "VLLM_LOG_LEVEL": "WARNING",
}

ROCM_LIBRARIES = "/opt/rocm/lib"


def environment(ctx: ProcessContext) -> Iterator[EnvSetting]:
    """The variables of a server, or of the router."""
    for name, value in ALWAYS.items():
        yield EnvSetting(name, value)
    yield EnvSetting("LD_LIBRARY_PATH", ROCM_LIBRARIES, op="prepend")
    for name, value in models.body(ctx).env.items():
        yield EnvSetting(name, value, source=ctx.table_source(f"env.{name}"))
    mode, path = models.mode(ctx)
    for name, value in mode.env.items():
        yield EnvSetting(name, value, source=ctx.table_source(f"{path}.env.{name}"))
    if ctx.process.kind == "server":
        yield from _shared_node(ctx)
        yield from held.variables(ctx)


def _shared_node(ctx: ProcessContext) -> Iterator[EnvSetting]:
    """What keeps the servers of one node apart; a server that has a node to itself needs none of it."""
    yield from visible_gpus(ctx, "amd")
    if "dp_base" in ctx.ports:
        yield EnvSetting("ATOM_DP_BASE_PORT", str(ctx.ports["dp_base"]), source=ctx.set_by("dp_base_port"))
    master = ctx.ports.get("dp_master")
    if master is not None and (ctx.shares_node or master != DP_MASTER_PORT):
        yield EnvSetting("ATOM_DP_MASTER_PORT", str(master), source=ctx.set_by("dp_master_port"))
