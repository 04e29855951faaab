"""What a role's sizes come to: how attention and experts are spread, independent ranks, drafted tokens."""

from __future__ import annotations

from typing import Literal

import attrs

from disagg_run.context import RankContext
from disagg_run.errors import SpecError
from disagg_run.sources import Source
from disagg_run.spec.model import Role, RoleSpec

#: How a role spreads attention and experts over its GPUs.
ModeName = Literal["plain", "expert_parallel", "dp_attention", "dp_attention_expert_parallel"]


def mode_name(role: RoleSpec) -> ModeName:
    """How a role spreads attention and experts."""
    if role.dp_attention:
        return "dp_attention_expert_parallel" if role.expert_parallel else "dp_attention"
    return "expert_parallel" if role.expert_parallel else "plain"


def attention_tp(role: RoleSpec) -> int:
    """Over how many GPUs one request's attention is split: under DP attention every GPU has requests of its own."""
    return 1 if role.dp_attention else role.tp or 1


def split_attention(ctx: RankContext, role: Role) -> tuple[int, Source]:
    """``attention_tp`` of a role, and who set what it follows from."""
    asked = ctx.spec.role(role)
    return attention_tp(asked), ctx.spec.source(f"{role}.{'dp_attention' if asked.dp_attention else 'tp'}")


def dp_ranks(role: RoleSpec) -> int:
    """Groups of one worker that have requests of their own: its replicas, or under DP attention all its TP ranks."""
    return role.dp * ((role.tp or 1) if role.dp_attention else 1)


def speculative_tokens(ctx: RankContext, role: Role) -> tuple[int, Source]:
    """Tokens that a role drafts a step, and who asked; a role that says none takes the other's: KV must be alike."""
    other: Role = "decode" if role == "prefill" else "prefill"
    if ctx.spec.role(role).mtp or not ctx.spec.role(other).mtp:
        return ctx.spec.role(role).mtp, ctx.spec.source(f"{role}.mtp")
    why = "prefill and decode must speculate alike"
    return ctx.spec.role(other).mtp, attrs.evolve(ctx.spec.source(f"{other}.mtp"), why=why)


def no_speculation(ctx: RankContext, tokens: int, source: Source, *, instead: str) -> SpecError:
    """The error for drafted tokens with a model that nobody knows to draft any; ``instead``: flags that would do it."""
    return SpecError(
        f"no way of speculation is known for {ctx.model.name!r}, but MTP {tokens} is asked for ({source})",
        remedy=f"leave MTP out, or give both roles {instead} as args",
    )
