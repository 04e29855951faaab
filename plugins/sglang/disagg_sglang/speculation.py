"""Multi-token prediction: how many tokens a role drafts, and the flags for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import attrs

from disagg_run.context import ProcessContext
from disagg_run.records import EnvSetting, Flag, flag
from disagg_run.roles import no_speculation, speculative_tokens
from disagg_sglang import models


def algorithm(value: Any) -> Any:
    """What ``--speculative-algorithm`` means: one has two names (0.5.16; a model may yet make another of both)."""
    return "EAGLE" if value == "NEXTN" else value


def flags(ctx: ProcessContext) -> Iterator[Flag]:
    """The algorithm and its counts; never counts without an algorithm."""
    steps, source = speculative_tokens(ctx, ctx.process.role or "prefill")
    if not steps:
        return
    how = models.body(ctx).speculation
    if how is None:
        raise no_speculation(ctx, steps, source, instead="--speculative-algorithm and what belongs to it")
    yield flag("--speculative-algorithm", how.algorithm, source=ctx.table_source("speculation.algorithm"))
    # A chain, not a tree: one candidate a step, so as many drafts as steps, and the token that is verified.
    yield flag("--speculative-eagle-topk", 1, source=source)
    yield flag("--speculative-num-steps", steps, source=source)
    drafts = attrs.evolve(source, why=f"{steps} steps and the verified token")
    yield flag("--speculative-num-draft-tokens", steps + 1, source=drafts)


def pretended_acceptance(ctx: ProcessContext) -> Iterator[EnvSetting]:
    """What makes decode of an agentic benchmark accept as many drafts as real text would on average."""
    block = models.agentic(ctx)
    steps, _ = speculative_tokens(ctx, "decode")
    if block is None or models.evaluates(ctx) or str(steps) not in block.accepted_tokens:
        return
    source = ctx.table_source(f"agentic.accepted_tokens.{steps}")
    yield EnvSetting("SGLANG_SIMULATE_ACC_LEN", block.accepted_tokens[str(steps)], source=source)
    yield EnvSetting("SGLANG_SIMULATE_ACC_METHOD", "match-expected", source=source)
    yield EnvSetting("SGLANG_SIMULATE_ACC_TOKEN_MODE", "real-draft-token", source=source)
