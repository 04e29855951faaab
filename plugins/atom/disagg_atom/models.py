"""The model table of ATOM: its typed rows, and what they say for one role."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal, cast

import attrs

from disagg_run import roles
from disagg_run.context import ProcessContext, RankContext
from disagg_run.declarations import ModelRow
from disagg_run.roles import ModeName, mode_name
from disagg_run.sources import Source
from disagg_run.spec.model import Role, as_tuple, frozen_map
from disagg_run.tables import read_model_table


@attrs.frozen(kw_only=True)
class OnlineQuantization:
    """Quantisation of weights while they are loaded; the fields are the engine's own JSON keys."""

    #: Format of all layers that are not excluded.
    global_quant_config: str
    #: Layers that stay as they are, by name; a leading ``*`` matches any beginning.
    exclude_layer: tuple[str, ...] = attrs.field(default=(), converter=as_tuple)


@attrs.frozen(kw_only=True)
class Speculation:
    """How the model speculates; how many tokens is the user's choice."""

    method: Literal["mtp", "eagle3", "dspark"]
    #: Model that drafts; None = the model's own layers.
    draft_model: str | None = None


@attrs.frozen(kw_only=True)
class Mode:
    """What belongs to one way of spreading the model."""

    #: Overlap two half batches' computation and communication (``--enable-tbo``).
    two_batch_overlap: bool = False
    online_quantization: OnlineQuantization | None = None
    env: Mapping[str, str] = attrs.field(factory=dict, converter=frozen_map)


@attrs.frozen(kw_only=True)
class AtomModel:
    """One row of models.yaml; None = the engine plugin's default."""

    block_size: int | None = None
    gpu_memory_utilization: float | None = None
    kv_cache_dtype: Literal["bf16", "fp8"] | None = None
    max_model_len: int | None = None
    max_num_batched_tokens: int | None = None
    max_num_seqs: int | None = None
    scheduler_delay_factor: float | None = None
    #: None = no way to speculate is known.
    speculation: Speculation | None = None
    #: Whether prefill and decode may split attention over different numbers of GPUs.
    mixed_tp: bool = False
    #: Variables in every mode.
    env: Mapping[str, str] = attrs.field(factory=dict, converter=frozen_map)
    modes: Mapping[ModeName, Mode] = attrs.field(factory=dict, converter=frozen_map)


def read_models() -> tuple[ModelRow, ...]:
    """The rows of models.yaml."""
    return read_model_table(Path(__file__).with_name("models.yaml"), AtomModel)


def body(ctx: RankContext) -> AtomModel:
    """The row of the plan's model."""
    return cast("AtomModel", ctx.model.body)


def mode(ctx: ProcessContext) -> tuple[Mode, str]:
    """What the row says for the process's own role, and the dotted path of it in the table."""
    name = mode_name(ctx.role_spec)
    return body(ctx).modes.get(name, Mode()), f"modes.{name}"


def served_name(ctx: RankContext) -> str:
    """The name that requests must use: the server's ``--served-model-name``, else its ``--model`` as typed."""
    return ctx.spec.served_model_name or ctx.model_path


def attention_tp(ctx: RankContext, role: Role) -> tuple[int | None, Source]:
    """Over how many GPUs a role splits one request's attention, and who says so; None where roles may differ."""
    size, source = roles.split_attention(ctx, role)
    return (None if body(ctx).mixed_tp else size), source
