"""The model table of SGLang: its typed rows, and what they say for one role in one mode."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, cast

import attrs

from disagg_run import roles
from disagg_run.context import ProcessContext, RankContext
from disagg_run.declarations import ModelRow
from disagg_run.roles import ModeName, mode_name
from disagg_run.sources import Source
from disagg_run.spec.model import Role, frozen_map
from disagg_run.tables import read_model_table


@attrs.frozen(kw_only=True)
class Speculation:
    """How the model speculates; how many tokens is the user's choice."""

    algorithm: Literal["NEXTN", "EAGLE"]


@attrs.frozen(kw_only=True)
class Experts:
    """How experts are reached under expert parallelism."""

    #: ``--moe-a2a-backend``: who moves tokens to experts.
    a2a_backend: Literal["mori"] = "mori"
    #: ``--ep-dispatch-algorithm``; ``fake`` spreads tokens evenly for benchmarks, whatever the model's gate says.
    dispatch_algorithm: Literal["fake"] | None = None
    deepep_mode: Literal["normal"] | None = None


@attrs.frozen(kw_only=True)
class Dispatch:
    """Limits of MoRI's token dispatch to experts, in tokens of one rank."""

    #: Number format in which expert outputs come back; "" says none: the engine then keeps its own, bf16.
    combine_dtype: Literal["", "auto"]
    #: Buffer of one rank per role; for decode under DP attention with experts the load may ask for another.
    tokens: Mapping[Role, int] = attrs.field(converter=frozen_map)
    #: Whether ``tokens`` is the least (a load that needs fewer does not shrink it); else the load's need stands.
    tokens_are_least: bool = False
    #: Input rows that one rank's experts compute at most; drops tokens beyond, so never in an evaluation.
    moe_max_input_tokens: Mapping[Role, int] = attrs.field(factory=dict, converter=frozen_map)
    #: Buffers up to so many tokens go between nodes by the low-latency kernel; None = twice decode's buffer.
    switch_threshold: int | None = None


@attrs.frozen(kw_only=True)
class Mode:
    """What belongs to one way of spreading the model, for one role."""

    #: Requests in one worker, or for each of its DP ranks.
    max_running_requests: int | None = None
    max_running_per_rank: int | None = None
    #: Whether the highest concurrency of the load, where it is known, replaces the numbers above.
    max_running_is_load: bool = False
    #: Graphs are captured for batches of 1 to this many requests.
    graph_sizes: int | None = None
    #: Tokens of one prefill chunk of a worker, or for each of its DP ranks (the engine divides what it is given).
    chunked_prefill_size: int | None = None
    chunked_prefill_per_rank: int | None = None
    max_total_tokens: int | None = None
    #: Whether the longest request is the load's: prompt, completion and one token.
    context_is_load: bool = False
    two_batch_overlap: bool = False
    #: Tokens between two chunks of a streamed answer.
    stream_interval: int | None = None
    #: Processes that turn text to tokens.
    tokenizer_workers: int | None = None
    env: Mapping[str, str] = attrs.field(factory=dict, converter=frozen_map)


@attrs.frozen(kw_only=True)
class RoleTable:
    """What a row says for one role."""

    #: Share of each GPU's memory for weights and KV, 0 to 1.
    mem_fraction_static: float
    #: Whether graphs are captured at all.
    graphs: bool = True
    modes: Mapping[ModeName, Mode] = attrs.field(factory=dict, converter=frozen_map)


@attrs.frozen(kw_only=True)
class AgenticRole:
    """What a role has otherwise in an agentic run."""

    mem_fraction_static: float
    max_running_requests: int
    chunked_prefill_size: int


@attrs.frozen(kw_only=True)
class Agentic:
    """What differs where long conversations come again and again; modes' loads and limits then do not count."""

    #: Longest conversation in tokens.
    context_length: int
    prefill: AgenticRole
    #: Tokens that a step accepts on average, by speculative tokens: decode pretends it, for recorded traces make no
    #: sense to the draft. Never in an evaluation.
    accepted_tokens: Mapping[str, str] = attrs.field(factory=dict, converter=frozen_map)


@attrs.frozen(kw_only=True)
class SglangModel:
    """One row of models.yaml; None = the engine's own default."""

    prefill: RoleTable
    decode: RoleTable
    dispatch: Dispatch
    experts: Experts = attrs.field(factory=Experts)
    kv_cache_dtype: Literal["fp8_e4m3"] | None = None
    attention_backend: Literal["aiter", "dsv4"] | None = None
    #: Tokens in one page of the KV cache.
    page_size: int | None = None
    #: Size of the sliding-window layers' KV as a share of the full layers'.
    swa_full_tokens_ratio: float | None = None
    shared_experts_fusion: bool = True
    #: ``--moe-dense-tp-size`` outside DP attention too; under it, it is always 1.
    moe_dense_tp_size: int | None = None
    tool_call_parser: str | None = None
    reasoning_parser: str | None = None
    model_loader_extra_config: Mapping[str, Any] = attrs.field(factory=dict, converter=frozen_map)
    #: None = no way to speculate is known.
    speculation: Speculation | None = None
    #: None = agentic runs only keep the prefix cache.
    agentic: Agentic | None = None
    log_level: str = "warning"
    #: Decode steps between two lines of the log.
    decode_log_interval: int = 1000
    #: Seconds until a server must be ready.
    server_timeout_s: float = 1800.0
    #: Work requests of one MoRI-IO queue pair, and the most that a job script's variable can ask for with this model.
    io_qp_max_send_wr: int | None = None
    #: Whether prefill and decode may split attention over different numbers of GPUs.
    mixed_tp: bool = False
    #: Variables in every mode.
    env: Mapping[str, str] = attrs.field(factory=dict, converter=frozen_map)

    def role(self, role: Role) -> RoleTable:
        """The part of one role."""
        return self.prefill if role == "prefill" else self.decode


def read_models() -> tuple[ModelRow, ...]:
    """The rows of models.yaml."""
    return read_model_table(Path(__file__).with_name("models.yaml"), SglangModel)


def body(ctx: RankContext) -> SglangModel:
    """The row of the plan's model."""
    return cast("SglangModel", ctx.model.body)


def mode(ctx: ProcessContext) -> tuple[Mode, str]:
    """What the row says for the process's role in its mode, and the dotted path of it in the table."""
    role, name = ctx.process.role or "prefill", mode_name(ctx.role_spec)
    return body(ctx).role(role).modes.get(name, Mode()), f"{role}.modes.{name}"


def agentic(ctx: RankContext) -> Agentic | None:
    """What the row says for agentic runs, where the run is one and the row says something."""
    return body(ctx).agentic if ctx.setting("agentic", False) else None


def evaluates(ctx: RankContext) -> bool:
    """Whether answers will be judged: what makes a benchmark faster at the cost of right answers is then left out."""
    return bool(ctx.setting("run_eval", False))


def served_name(ctx: RankContext) -> str:
    """The name that requests must use: the server's ``--served-model-name``, else its ``--model-path`` as typed."""
    return ctx.spec.served_model_name or ctx.model_path


def attention_tp(ctx: RankContext, role: Role) -> tuple[int | None, Source]:
    """Over how many GPUs a role splits one request's attention, and who says so; None where roles may differ."""
    size, source = roles.split_attention(ctx, role)
    return (None if body(ctx).mixed_tp else size), source
