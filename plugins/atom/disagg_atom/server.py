"""The command of ATOM's OpenAI server, the same program for prefill and decode."""

from __future__ import annotations

import json
from collections.abc import Iterator

import attrs

from disagg_atom import held, models
from disagg_atom.listeners import HTTP_PORTS
from disagg_run.context import ProcessContext
from disagg_run.errors import SpecError
from disagg_run.gpus import check_vendor, known_vendor
from disagg_run.model_files import located, located_by
from disagg_run.option_flags import host_flag, option_flag, served_name_flag
from disagg_run.records import Command, Flag, flag
from disagg_run.roles import no_speculation, speculative_tokens
from disagg_run.settable_ports import port_source
from disagg_run.sources import Layer, Source

PROGRAM = ("python3", "-m", "atom.entrypoints.openai_server")

#: Batch sizes for which decode captures graphs, in every public recipe: steps of 8 up to 256.
CAPTURE_SIZES = (1, 2, 4, *range(8, 257, 8))


def server_command(ctx: ProcessContext) -> Command:
    """The command of one worker; its flags in the order of the public launcher.

    Raises SpecError for GPUs that are not AMD's, and for speculation with a model for which no method is known.
    """
    check_vendor(ctx, "ATOM", needed="amd", found=known_vendor(ctx, "amd"), remedy="use another engine")
    flags = (*_place(ctx), *_parallelism(ctx), *_speculation(ctx), *_memory(ctx), *_quantization(ctx), *_graphs(ctx))
    return Command(program=PROGRAM, flags=flags)


def _place(ctx: ProcessContext) -> Iterator[Flag]:
    role = ctx.process.role or "prefill"
    path, why = located(ctx)
    yield flag("--model", path, source=located_by(ctx), option="model_path")
    yield served_name_flag(ctx, models.served_name(ctx), told=bool(why))
    yield host_flag(ctx)
    port = port_source(ctx, "http", f"{role}_port", HTTP_PORTS[role])
    yield flag("--server-port", ctx.ports["http"], source=port)
    yield flag("--trust-remote-code")
    yield from held.server_flags(ctx)


def _parallelism(ctx: ProcessContext) -> Iterator[Flag]:
    role = ctx.role_spec
    yield option_flag(ctx, "-tp", "tp", role.tp)
    yield option_flag(ctx, "-pp", "pp", role.pp, implied=role.pp == 1)
    yield option_flag(ctx, "-dp", "dp", role.dp, implied=role.dp == 1)
    yield option_flag(ctx, "--enable-expert-parallel", "expert_parallel", implied=not role.expert_parallel)
    yield option_flag(ctx, "--enable-dp-attention", "dp_attention", implied=not role.dp_attention)
    mode, path = models.mode(ctx)
    if mode.two_batch_overlap:
        yield flag("--enable-tbo", source=ctx.table_source(f"{path}.two_batch_overlap"))


def _speculation(ctx: ProcessContext) -> Iterator[Flag]:
    tokens, source = speculative_tokens(ctx, ctx.process.role or "prefill")
    if not tokens:
        return
    how = models.body(ctx).speculation
    if how is None:
        raise no_speculation(ctx, tokens, source, instead="--method, --draft-model and --num-speculative-tokens")
    yield flag("--method", how.method, source=ctx.table_source("speculation.method"))
    if how.draft_model:
        yield flag("--draft-model", how.draft_model, source=ctx.table_source("speculation.draft_model"))
    yield flag("--num-speculative-tokens", tokens, source=source)


def _memory(ctx: ProcessContext) -> Iterator[Flag]:
    yield from _layered(ctx, "--kv_cache_dtype", "kv_cache_dtype", "fp8")
    yield from _layered(ctx, "--block-size", "block_size", 16)
    yield from _layered(ctx, "--gpu-memory-utilization", "gpu_memory_utilization", 0.85)
    yield from _batch_size(ctx)
    yield from _layered(ctx, "--max-model-len", "max_model_len")
    yield from _layered(ctx, "--max-num-batched-tokens", "max_num_batched_tokens")
    yield from _layered(ctx, "--scheduler-delay-factor", "scheduler_delay_factor")
    yield flag("--no-enable_prefix_caching")


def _layered(ctx: ProcessContext, name: str, field: str, default: object = None) -> Iterator[Flag]:
    """A flag from the plugin's default, the model's row and the user's setting; the core lets the last one win."""
    if default is not None:
        yield flag(name, default)
    value = getattr(models.body(ctx), field)
    if value is not None:
        yield flag(name, value, source=ctx.table_source(field))
    setting = ctx.setting(field)
    if setting is not None:
        yield flag(name, setting, source=ctx.source(field))


def _batch_size(ctx: ProcessContext) -> Iterator[Flag]:
    """Decode takes the load that it is for, in place of the defaults and of the variable that sizes prefill."""
    source = ctx.source("max_num_seqs")
    if ctx.process.role == "prefill" or not ctx.spec.bench.concurrency or source.layer > Layer.CONTRACT:
        yield from _layered(ctx, "--max-num-seqs", "max_num_seqs", 256)
        return
    why = f"highest of bench.concurrency ({ctx.spec.source('bench.concurrency')})"
    computed = Source(layer=Layer.ENGINE, plugin=ctx.engine.name, why=why)
    yield flag("--max-num-seqs", max(ctx.spec.bench.concurrency), source=computed)


def _quantization(ctx: ProcessContext) -> Iterator[Flag]:
    mode, path = models.mode(ctx)
    if mode.online_quantization is not None:
        values = attrs.asdict(mode.online_quantization)
        values["exclude_layer"] = list(mode.online_quantization.exclude_layer)
        yield flag("--online_quant_config", values, source=ctx.table_source(f"{path}.online_quantization"))


def _graphs(ctx: ProcessContext) -> Iterator[Flag]:
    if ctx.process.role == "decode":
        yield flag("--cudagraph-capture-sizes", _json(CAPTURE_SIZES))
    sizes, source = ctx.setting("cudagraph_capture_sizes"), ctx.source("cudagraph_capture_sizes")
    if sizes is None:
        return
    if not isinstance(sizes, (list, tuple)) or not all(type(size) is int and size > 0 for size in sizes):
        raise SpecError(
            f"cudagraph_capture_sizes is {sizes!r} ({source})", remedy="give a list of sizes like [1, 2, 4]"
        )
    yield flag("--cudagraph-capture-sizes", _json(sizes), source=source)


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))
