"""MoRI's dispatch of tokens to experts: buffer sizes, the kernel switch and the shared heap, computed from the load."""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from disagg_run.context import RankContext
from disagg_run.records import EnvSetting
from disagg_run.roles import dp_ranks, speculative_tokens
from disagg_run.sources import Layer, Source
from disagg_run.spec.model import Role
from disagg_sglang import models

#: What MoRI's shared heap, 4 GiB by default, is known to suffice for; at 32 ranks it is exhausted (ROCm/MAD#168).
HEAP_GIB = 4
HEAP_EP = 16
HEAP_DISPATCH_TOKENS = 16384


def expert_ranks(ctx: RankContext, role: Role) -> int:
    """GPUs over which a role's experts are spread; 1 without expert parallelism. The engine spreads over all of TP."""
    spec = ctx.spec.role(role)
    return (spec.tp or 1) if spec.expert_parallel else 1


def dispatch_tokens(ctx: RankContext, role: Role) -> tuple[int, Source]:
    """Tokens of one rank that a dispatch must hold (SGLANG_MORI_NUM_MAX_DISPATCH_TOKENS_PER_RANK), and why.

    The table's number; but decode with experts sends a token, and each draft token, for every request of a rank. Under
    DP attention those are highest concurrency / DP ranks, rounded up and at least 1; else the table says how many.
    """
    table = models.body(ctx).dispatch
    stated, place = table.tokens[role], ctx.table_source(f"dispatch.tokens.{role}")
    spec, load = ctx.spec.role(role), ctx.spec.bench.concurrency
    if role == "prefill" or not spec.expert_parallel:
        return stated, place
    drafts, _ = speculative_tokens(ctx, role)
    each = f"{1 + drafts} token{'s' if drafts else ''} a request"
    if spec.dp_attention and load:
        ranks = dp_ranks(spec)
        tokens = max(1, -(-max(load) // ranks)) * (1 + drafts)
        source = _computed(ctx, f"concurrency {max(load)} over {ranks} DP ranks, {each}")
    else:
        tokens = stated * (1 if table.tokens_are_least else 1 + drafts)
        source = attrs.evolve(place, why=each) if tokens > stated else place
    if table.tokens_are_least and tokens <= stated:
        return stated, place
    return tokens, source


def switch_threshold(ctx: RankContext) -> tuple[int, Source]:
    """Tokens up to which a buffer goes between nodes by the low-latency kernel: the table's, else twice decode's.

    The engine compares its buffer with it (0.5.12, moriep.py), so that decode's is below and prefill's above.
    """
    pinned = models.body(ctx).dispatch.switch_threshold
    if pinned is not None:
        return pinned, ctx.table_source("dispatch.switch_threshold")
    tokens, source = dispatch_tokens(ctx, "decode")
    why = f"twice decode's {tokens} dispatch tokens"
    return 2 * tokens, attrs.evolve(source, why=f"{why} ({source.why})" if source.why else why)


def _computed(ctx: RankContext, why: str) -> Source:
    return Source(layer=Layer.ENGINE, plugin=ctx.engine.name, why=why)


def shmem_heap_gib(expert_count: int, tokens: int) -> int | None:
    """GiB of MoRI's shared heap for ``expert_count`` expert ranks with buffers of ``tokens`` each; None = the default.

    Buffers for every peer lie in it, so it grows with both (ROCm/MAD#168).
    """
    times = max(1, -(-expert_count // HEAP_EP)) * max(1, -(-tokens // HEAP_DISPATCH_TOKENS))
    return HEAP_GIB * times if times > 1 else None


def rank_settings(ctx: RankContext) -> Iterator[EnvSetting]:
    """What is the same for all processes."""
    threshold, source = switch_threshold(ctx)
    yield EnvSetting("SGLANG_MORI_DISPATCH_INTER_KERNEL_SWITCH_THRESHOLD", str(threshold), source=source)


def role_settings(ctx: RankContext, role: Role) -> Iterator[EnvSetting]:
    """What a server of one role is given."""
    table = models.body(ctx).dispatch
    place = ctx.table_source("dispatch.combine_dtype")
    yield EnvSetting("SGLANG_MORI_COMBINE_DTYPE", table.combine_dtype, source=place)
    tokens, source = dispatch_tokens(ctx, role)
    yield EnvSetting("SGLANG_MORI_NUM_MAX_DISPATCH_TOKENS_PER_RANK", str(tokens), source=source)
    limit = table.moe_max_input_tokens.get(role)
    if limit is not None and not models.evaluates(ctx):
        place = ctx.table_source(f"dispatch.moe_max_input_tokens.{role}")
        yield EnvSetting("SGLANG_MORI_MOE_MAX_INPUT_TOKENS", str(limit), source=place)
    ranks = expert_ranks(ctx, role)
    heap = shmem_heap_gib(ranks, tokens)
    if ranks > 1 and heap is not None:
        why = f"{ranks} expert ranks, {tokens} dispatch tokens each"
        yield EnvSetting("MORI_SHMEM_HEAP_SIZE", f"{heap}G", source=_computed(ctx, why))
