"""The model table of vLLM: its typed rows, and what they say for one role."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, cast

import attrs

from disagg_run.context import ProcessContext, RankContext
from disagg_run.declarations import ModelRow
from disagg_run.spec.model import Role, frozen_map
from disagg_run.tables import read_model_table


@attrs.frozen(kw_only=True)
class Speculation:
    """How the model speculates; how many tokens is the user's choice."""

    #: As ``--speculative-config`` has it.
    method: Literal["mtp", "eagle3"]
    #: Model that drafts; None = the model's own layers.
    draft_model: str | None = None


@attrs.frozen(kw_only=True)
class Part:
    """What a row says for both roles, or for one; None = the engine's default. Sizes are text as vLLM reads it."""

    #: Tokens in one block of the KV cache.
    block_size: int | None = None
    #: Share of each GPU's memory, 0 to 1, as written: 0.90.
    gpu_memory_utilization: str | None = None
    kv_cache_dtype: str | None = None
    #: Longest request in tokens; ``K`` and the like are allowed here and below.
    max_model_len: str | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: str | None = None
    prefix_caching: bool | None = None
    #: Experts over GPUs even where the user does not ask for it.
    expert_parallel: bool = False
    #: How experts exchange tokens.
    all2all_backend: str | None = None
    #: Further flags by name without dashes: text, number, list; true = the switch, false = its negation.
    flags: Mapping[str, Any] = attrs.field(factory=dict, converter=frozen_map)
    env: Mapping[str, str] = attrs.field(factory=dict, converter=frozen_map)


@attrs.frozen(kw_only=True)
class VllmModel(Part):
    """One row of models.yaml."""

    #: Multi-head latent attention: each TP rank holds the whole KV, so that TP sizes may differ.
    mla: bool = False
    #: KV heads of the model; None = not known.
    kv_heads: int | None = None
    #: None = no way to speculate is known.
    speculation: Speculation | None = None
    roles: Mapping[Role, Part] = attrs.field(factory=dict, converter=frozen_map)


def read_models() -> tuple[ModelRow, ...]:
    """The rows of models.yaml."""
    return read_model_table(Path(__file__).with_name("models.yaml"), VllmModel)


def body(ctx: RankContext) -> VllmModel:
    """The row of the plan's model; an empty one for a model without a row that was let through."""
    row = ctx.model.body
    return VllmModel() if row is None else cast("VllmModel", row)


def parts(ctx: ProcessContext) -> Iterator[tuple[Part, str]]:
    """What the row says for the process, the wider part first, each with its dotted path and a dot ("" = the row)."""
    row = body(ctx)
    yield row, ""
    role = ctx.process.role
    if role is not None and role in row.roles:
        yield row.roles[role], f"roles.{role}."


def served_name(ctx: RankContext) -> str:
    """The name that requests must use; the model's name where the user gives none, not its path on the node."""
    return ctx.spec.served_model_name or ctx.spec.model
