"""The model table of vLLM: its typed rows, what they say for one role, and where the model lies on a node."""

from __future__ import annotations

import difflib
import posixpath
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import attrs

from disagg_run.context import ProcessContext, RankContext
from disagg_run.declarations import ModelRow
from disagg_run.errors import SpecError
from disagg_run.spec.model import Role, frozen_map
from disagg_run.tables import read_model_table

#: Name of the waiver for a model without a row, which then gets the engine's own defaults.
UNKNOWN_MODEL = "unknown-model"


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
    roles: Mapping[Role, Part] = attrs.field(factory=dict, converter=frozen_map)


def read_models() -> tuple[ModelRow, ...]:
    """The rows of models.yaml."""
    return read_model_table(Path(__file__).with_name("models.yaml"), VllmModel)


def body(ctx: RankContext) -> VllmModel:
    """The row of the plan's model; an empty one for a model without a row that was let through.

    Raises SpecError for a model without a row otherwise: a slip of the name would run with the wrong flags.
    """
    row = ctx.model.body
    if row is not None:
        return cast("VllmModel", row)
    if UNKNOWN_MODEL in ctx.spec.waive:
        return VllmModel()
    names = sorted(each.name for each in read_models())
    near = difflib.get_close_matches(ctx.model.name, names, 1, 0.5)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise SpecError(
        f"{ctx.engine.name} has no model {ctx.model.name!r} ({ctx.spec.source('model')})",
        remedy=f"{hint}its table has {', '.join(names)}; any other is planned with the engine's own defaults under"
        f" --waive {UNKNOWN_MODEL}",
    )


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


def model_dir(ctx: RankContext) -> tuple[str, str]:
    """Where the model lies on the rank's node, and why there ("" = as asked for).

    A directory of a Hugging Face cache holds no model itself: ``refs/main`` names the snapshot that does. The first one
    that a listing shows may be another (R28).
    """
    links = ctx.facts.links if ctx.facts else {}
    path = ctx.model_path.rstrip("/") or "/"
    directory = path
    if directory not in links and not ctx.spec.model_path:
        # models--ORG--NAME beside where NAME would be.
        parent, name = posixpath.split(path)
        cached = [each for each in links if posixpath.split(each) == (parent, posixpath.basename(each))]
        named = [each for each in cached if posixpath.basename(each).split("--")[-1] == name]
        directory = named[0] if len(named) == 1 else path
    target = links.get(directory)
    if not target:
        return ctx.model_path, ""
    snapshot = target if target.startswith("/") else f"{directory}/snapshots/{target}"
    return snapshot, f"snapshot that refs/main of {directory} names"
