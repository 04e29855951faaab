"""The command of ``vllm serve``, the same program for prefill and decode, heads and followers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import attrs

from disagg_run.context import ProcessContext
from disagg_run.errors import SpecError
from disagg_run.model_files import located
from disagg_run.option_flags import option_flag
from disagg_run.records import FIXED, Command, Flag, flag
from disagg_run.roles import no_speculation, speculative_tokens
from disagg_run.settable_ports import port_source
from disagg_run.sources import Source
from disagg_vllm import held, models, parallel, router, versions
from disagg_vllm.devices import is_amd
from disagg_vllm.listeners import HTTP_PORT

PROGRAM = ("vllm", "serve")

#: Flag, and field of the table and setting that give it a value.
_SIZES = (
    ("--block-size", "block_size"),
    ("--gpu-memory-utilization", "gpu_memory_utilization"),
    ("--max-model-len", "max_model_len"),
    ("--kv-cache-dtype", "kv_cache_dtype"),
    ("--max-num-seqs", "max_num_seqs"),
    ("--max-num-batched-tokens", "max_num_batched_tokens"),
    ("--all2all-backend", "all2all_backend"),
)
_NUMBER = re.compile(r"-?\d+", re.ASCII)


def server_command(ctx: ProcessContext) -> Command:
    """The command of one process of a worker.

    Raises SpecError for an unknown model, and for speculation with a model for which no method is known.
    """
    spread = (*_parallelism(ctx), *_nodes(ctx))
    rest = (*_sizes(ctx), *_switches(ctx), *_further(ctx), *_speculation(ctx))
    told = (*_place(ctx), *spread, *rest)
    return Command(program=(*PROGRAM, located(ctx)[0]), flags=(*told, *held.server_flags(ctx)))


def _place(ctx: ProcessContext) -> Iterator[Flag]:
    spec = ctx.spec
    named = "served_model_name" if spec.served_model_name else "model"
    name = flag("--served-model-name", models.served_name(ctx), source=spec.source(named), option="served_model_name")
    yield attrs.evolve(name, remark=_device_remark(ctx))
    if parallel.serves_http(ctx):
        yield flag("--port", ctx.ports["http"], source=port_source(ctx, "http", "server_port", HTTP_PORT))
        # Where it is left out, it is 0.0.0.0.
        yield router.host_flag(ctx, implied=router.bound_address(ctx) == "0.0.0.0")
    yield flag("--trust-remote-code")


def _parallelism(ctx: ProcessContext) -> Iterator[Flag]:
    role, size = ctx.role_spec, parallel.sizes(ctx.role_spec)
    if role.dp_attention:
        why = "each GPU is a data-parallel rank"
        yield option_flag(ctx, "--tensor-parallel-size", "dp_attention", 1, why=why)
        why = f"tp {role.tp} * dp {role.dp} GPUs of the worker ({ctx.spec.source(f'{ctx.process.role}.tp')})"
        yield option_flag(ctx, "--data-parallel-size", "dp_attention", size.dp, why=why)
    else:
        yield option_flag(ctx, "--tensor-parallel-size", "tp", size.tp)
        yield option_flag(ctx, "--data-parallel-size", "dp", size.dp, implied=size.dp == 1)
    yield option_flag(ctx, "--pipeline-parallel-size", "pp", size.pp, implied=size.pp == 1)
    yield from _experts(ctx)


def _experts(ctx: ProcessContext) -> Iterator[Flag]:
    for part, path in models.parts(ctx):
        if part.expert_parallel:
            yield flag("--enable-expert-parallel", source=ctx.table_source(f"{path}expert_parallel"))
    if ctx.role_spec.expert_parallel:
        yield option_flag(ctx, "--enable-expert-parallel", "expert_parallel")


def _nodes(ctx: ProcessContext) -> Iterator[Flag]:
    """What the nodes of one worker need to find each other, and which of them serve HTTP."""
    process, head, size = ctx.process, ctx.head, parallel.sizes(ctx.role_spec)
    if process.node_count == 1 or head is None:
        return
    if parallel.spans_replica(ctx):
        yield flag("--nnodes", process.node_count, option=f"{process.role}.tp")
        yield flag("--node-rank", process.node_rank, option="nodes")
        yield flag("--master-addr", head.address, option=FIXED)
        yield flag("--master-port", head.ports["master"], option=FIXED)
    if size.dp > 1:
        yield flag("--data-parallel-address", head.address, option=FIXED)
        yield flag("--data-parallel-rpc-port", head.ports["dp_rpc"], option=FIXED)
    if parallel.spreads_ranks(ctx):
        ranks = parallel.local_ranks(ctx)
        yield flag("--data-parallel-size-local", len(ranks), option="nodes")
        hybrid = bool(ctx.setting(parallel.HYBRID))
        if hybrid:
            option = f"settings.{parallel.HYBRID}"
            yield flag("--data-parallel-hybrid-lb", source=ctx.source(parallel.HYBRID), option=option)
        if not process.head or hybrid:
            # On a head alone it would make that a server of its own ranks only.
            yield flag("--data-parallel-start-rank", ranks.start, option="nodes")
    if not parallel.serves_http(ctx):
        yield flag("--headless", option="nodes")


def _sizes(ctx: ProcessContext) -> Iterator[Flag]:
    """Flags from the model's row and the user's settings; the core lets the last one win."""
    for name, field in _SIZES:
        value, source = _narrowest(ctx, field)
        if field == "all2all_backend" and value is not None:
            value = versions.all2all_backend(ctx, str(value))
        if value is not None:
            yield flag(name, value, source=source)
        setting = ctx.setting(field)
        if setting is not None:
            _check_batch(ctx, field, str(setting))
            yield flag(name, setting, source=ctx.source(field))


def _check_batch(ctx: ProcessContext, field: str, text: str) -> None:
    """The parser takes every whole number, the engine then only those from 1 on (``SchedulerConfig``)."""
    number = _NUMBER.match(text)
    if field == "max_num_batched_tokens" and number and int(number[0]) < 1:
        raise SpecError(f"{field} is {text!r} ({ctx.source(field)}), but a batch has tokens", remedy="give 1 or more")


def _narrowest(ctx: ProcessContext, field: str) -> tuple[object, Source | None]:
    found: tuple[object, Source | None] = (None, None)
    for part, path in models.parts(ctx):
        value = getattr(part, field)
        if value is not None:
            found = (value, ctx.table_source(f"{path}{field}"))
    return found


def _switches(ctx: ProcessContext) -> Iterator[Flag]:
    wanted, source = _narrowest(ctx, "prefix_caching")
    if wanted is not None:
        yield flag(_switch("enable-prefix-caching", wanted), source=source)
    setting = ctx.setting("prefix_caching")
    if setting is not None:
        yield flag(_switch("enable-prefix-caching", setting), source=ctx.source("prefix_caching"))
    elif ctx.setting("agentic"):
        source = attrs.evolve(ctx.source("agentic"), why="conversations come again")
        yield flag("--enable-prefix-caching", source=source)


def _switch(name: str, on: object) -> str:
    return f"--{name}" if on else f"--no-{name}"


def _further(ctx: ProcessContext) -> Iterator[Flag]:
    chosen: dict[str, tuple[object, Source]] = {}
    for part, path in models.parts(ctx):
        chosen |= {name: (value, ctx.table_source(f"{path}flags.{name}")) for name, value in part.flags.items()}
    for name, (value, source) in chosen.items():
        if value == "aiter" and not is_amd(ctx):
            continue
        if isinstance(value, bool):
            yield flag(_switch(name, value), source=source)
        else:
            yield flag(f"--{name}", *(value if isinstance(value, list) else [value]), source=source)
        if name == "attention-backend":
            yield held.ATTENTION_BACKEND


def _device_remark(ctx: ProcessContext) -> str:
    """What to know of a plan for devices that the model table is not for; "" = nothing."""
    if is_amd(ctx) or ctx.model.body is None:
        return ""
    return (
        f"the values of {ctx.model.name!r} are for AMD GPUs: on others the backends of AITER and MoRI are left out, so"
        " give what fits by --args"
    )


def _speculation(ctx: ProcessContext) -> Iterator[Flag]:
    tokens, source = speculative_tokens(ctx, ctx.process.role or "prefill")
    if not tokens:
        return
    how = models.body(ctx).speculation
    if how is None:
        raise no_speculation(ctx, tokens, source, instead="--speculative-config")
    config: dict[str, Any] = {"method": how.method, "num_speculative_tokens": tokens}
    sources = {"method": ctx.table_source("speculation.method"), "num_speculative_tokens": source}
    if how.draft_model:
        config["model"], sources["model"] = how.draft_model, ctx.table_source("speculation.draft_model")
    yield Flag("--speculative-config", json=config, leaf_sources=sources)
    yield from held.speculation_flags(ctx.process.role or "prefill", config)
