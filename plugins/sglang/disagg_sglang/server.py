"""The command of SGLang's server, the same program for prefill and decode, heads and followers."""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from disagg_run.context import ProcessContext, host_port
from disagg_run.errors import SpecError
from disagg_run.model_files import located, located_by
from disagg_run.option_flags import host_flag, implied_flag, option_flag, served_name_flag
from disagg_run.records import FIXED, Command, Flag, flag
from disagg_run.roles import dp_ranks
from disagg_run.settable_ports import port_source
from disagg_run.sources import Layer, Source
from disagg_sglang import batching, held, hicache, models, speculation, versions
from disagg_sglang.devices import is_amd, table_remark
from disagg_sglang.listeners import HTTP_PORT, bootstrap_port, says_bootstrap_port

PROGRAM = ("python3", "-m", "sglang.launch_server")


def server_command(ctx: ProcessContext) -> Command:
    """The command of one process of a worker.

    Raises SpecError for speculation with a model for which no way is known, and for DP attention in replicas.
    """
    parts = (_place, _parallelism, _model, _experts, speculation.flags, batching.flags, hicache.server_flags, _logs)
    return Command(program=PROGRAM, flags=[each for part in parts for each in part(ctx)])


def _place(ctx: ProcessContext) -> Iterator[Flag]:
    path, why = located(ctx)
    place = flag("--model-path", path, source=located_by(ctx), option="model_path")
    yield attrs.evolve(place, remark=table_remark(ctx))
    yield served_name_flag(ctx, models.served_name(ctx), told=bool(why))
    yield flag("--disaggregation-mode", ctx.process.role, option=f"{ctx.process.role}.workers")
    own = Source(layer=Layer.ENGINE, plugin=ctx.engine.name, why="one number on all nodes of a worker")
    yield flag(
        "--disaggregation-bootstrap-port",
        bootstrap_port(ctx),
        source=ctx.set_by("bootstrap_port") or own,
        option="settings.bootstrap_port",
        implied=not says_bootstrap_port(ctx),
    )
    yield host_flag(ctx)
    yield flag("--port", ctx.ports["http"], source=port_source(ctx, "http", "server_port", HTTP_PORT))
    yield flag("--trust-remote-code")
    yield from held.server_flags(ctx)


def _parallelism(ctx: ProcessContext) -> Iterator[Flag]:
    role, process = ctx.role_spec, ctx.process
    yield option_flag(ctx, "--tp-size", "tp", role.tp)
    yield option_flag(ctx, "--pp-size", "pp", role.pp, implied=role.pp == 1)
    if role.dp_attention:
        yield from _dp_attention(ctx)
    else:
        yield option_flag(ctx, "--dp-size", "dp", role.dp, implied=role.dp == 1)
        yield implied_flag("--enable-dp-attention", option=f"{process.role}.dp_attention")
        yield implied_flag("--attn-dp-size", 1, option=f"{process.role}.dp_attention")
    if process.node_count > 1 and ctx.head is not None:
        yield flag("--dist-init-addr", host_port(ctx.head.address, ctx.head.ports["dist_init"]), option=FIXED)
        yield flag("--nnodes", process.node_count, option=f"{process.role}.tp")
        yield flag("--node-rank", process.node_rank, option="nodes")
    else:
        yield implied_flag("--nnodes", 1, option=f"{process.role}.tp")
        yield implied_flag("--node-rank", 0, option="nodes")


def _dp_attention(ctx: ProcessContext) -> Iterator[Flag]:
    role, name = ctx.role_spec, ctx.process.role
    source = ctx.spec.source(f"{name}.dp_attention")
    if role.dp != 1:
        raise SpecError(
            f"{name} asks for DP attention ({source}) in {role.dp} replicas ({ctx.spec.source(f'{name}.dp')}), which"
            f" {ctx.engine.name} is not known to do",
            remedy=f"ask for more {name} workers instead of replicas",
        )
    ranks = dp_ranks(role)
    # One rank is no data parallelism: the engine then switches DP attention off and refuses what belongs to it.
    if ranks == 1:
        return
    each_gpu = attrs.evolve(source, why=f"every GPU of TP {role.tp} has requests of its own")
    for each in versions.dp_attention(ctx.engine_version, ranks):
        yield attrs.evolve(each, source=each_gpu, option=f"{name}.dp_attention")
    yield flag("--moe-dense-tp-size", 1, source=source)
    yield flag("--enable-dp-lm-head", source=source)


def _model(ctx: ProcessContext) -> Iterator[Flag]:
    row = models.body(ctx)
    values = (
        ("--kv-cache-dtype", "kv_cache_dtype"),
        ("--attention-backend", "attention_backend"),
        ("--swa-full-tokens-ratio", "swa_full_tokens_ratio"),
        ("--tool-call-parser", "tool_call_parser"),
        ("--reasoning-parser", "reasoning_parser"),
    )
    for name, field in values:
        value = getattr(row, field)
        if value is not None and (field != "attention_backend" or is_amd(ctx)):
            yield flag(name, value, source=ctx.table_source(field))
    if not row.shared_experts_fusion:
        yield flag("--disable-shared-experts-fusion", source=ctx.table_source("shared_experts_fusion"))
    if row.moe_dense_tp_size is not None and dp_ranks(ctx.role_spec) == 1:
        yield flag("--moe-dense-tp-size", row.moe_dense_tp_size, source=ctx.table_source("moe_dense_tp_size"))
    if row.model_loader_extra_config:
        source = ctx.table_source("model_loader_extra_config")
        yield flag("--model-loader-extra-config", dict(row.model_loader_extra_config), source=source)


def _experts(ctx: ProcessContext) -> Iterator[Flag]:
    role = ctx.role_spec
    if not role.expert_parallel:
        return
    experts = models.body(ctx).experts
    yield option_flag(ctx, "--ep-size", "expert_parallel", role.tp, why=f"experts over all {role.tp} GPUs")
    if not is_amd(ctx):
        return
    yield flag("--moe-a2a-backend", experts.a2a_backend, source=ctx.table_source("experts.a2a_backend"))
    if experts.deepep_mode:
        yield flag("--deepep-mode", experts.deepep_mode, source=ctx.table_source("experts.deepep_mode"))
    if experts.dispatch_algorithm and not models.evaluates(ctx):
        place = ctx.table_source("experts.dispatch_algorithm")
        yield flag("--ep-dispatch-algorithm", experts.dispatch_algorithm, source=place)


def _logs(ctx: ProcessContext) -> Iterator[Flag]:
    row = models.body(ctx)
    yield flag("--watchdog-timeout", 3600)
    yield flag("--load-balance-method", "round_robin")
    if models.agentic(ctx):
        yield flag("--log-level", "info", source=ctx.table_source("agentic"))
        yield flag("--log-level-http", "error", source=ctx.table_source("agentic"))
    else:
        yield flag("--log-level", row.log_level, source=_placed(ctx, "log_level"))
        yield flag("--decode-log-interval", row.decode_log_interval, source=_placed(ctx, "decode_log_interval"))
    if ctx.setting("enable_metrics", False):
        yield flag("--enable-metrics", source=ctx.source("enable_metrics"))


def _placed(ctx: ProcessContext, field: str) -> Source | None:
    """The table's place of a field, where the table says it."""
    return ctx.table_source(field) if field in ctx.model.places else None
