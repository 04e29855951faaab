"""How a worker is spread over GPUs and nodes, in vLLM's terms."""

from __future__ import annotations

from collections.abc import Callable

import attrs

from disagg_run import value_meanings
from disagg_run.context import ProcessContext, RankContext
from disagg_run.declarations import SharedValue
from disagg_run.errors import TopologyError
from disagg_run.roles import split_attention
from disagg_run.sources import Source
from disagg_run.spec.model import Role, RoleSpec

#: Setting by which each node of a worker serves its own data-parallel ranks.
HYBRID = "dp_hybrid"

CONTEXT_PARALLEL = "--decode-context-parallel-size"


@attrs.frozen(kw_only=True)
class Sizes:
    """The sizes of one worker as vLLM counts them."""

    tp: int
    pp: int
    #: Data-parallel ranks, each a whole engine of tp * pp GPUs.
    dp: int


def sizes(role: RoleSpec) -> Sizes:
    """A role's sizes.

    vLLM has no flag for data-parallel attention: attention is data parallel where each GPU is a rank of its own,
    and the experts are spread over all of them by expert parallelism.
    """
    if role.dp_attention:
        return Sizes(tp=1, pp=role.pp, dp=role.dp * (role.tp or 1))
    return Sizes(tp=role.tp or 1, pp=role.pp, dp=role.dp)


def spans_replica(ctx: ProcessContext) -> bool:
    """Whether even one data-parallel rank of the process's worker lies on several nodes."""
    size = sizes(ctx.role_spec)
    return ctx.process.node_count > 1 and size.tp * size.pp > len(ctx.process.gpus)


def spreads_ranks(ctx: ProcessContext) -> bool:
    """Whether whole data-parallel ranks of the process's worker lie on different nodes."""
    return ctx.process.node_count > 1 and not spans_replica(ctx)


def serves_http(ctx: ProcessContext) -> bool:
    """Whether the process serves HTTP: the head, or under hybrid load balancing each node with its own ranks.

    Raises TopologyError where each node is to serve, but has no whole rank.
    """
    if ctx.process.head or not ctx.setting(HYBRID):
        return ctx.process.head
    if not spreads_ranks(ctx):
        raise TopologyError(
            f"{HYBRID} is set ({ctx.source(HYBRID)}), but the nodes of {ctx.process.role} worker {ctx.process.worker}"
            " share each rank, so that only the first can serve",
            remedy=f"leave it out, or make each GPU a rank with --{ctx.process.role}-dp-attention",
        )
    return True


def local_ranks(ctx: ProcessContext) -> range:
    """The data-parallel ranks of the process's node where whole ranks lie on it; all of the worker otherwise."""
    size = sizes(ctx.role_spec)
    if not spreads_ranks(ctx):
        return range(size.dp)
    here = size.dp // ctx.process.node_count
    return range(ctx.process.node_rank * here, (ctx.process.node_rank + 1) * here)


def shared_tensor_parallel(problem: Callable[[RankContext, int, int], str]) -> SharedValue:
    """The tensor-parallel sizes of prefill and decode, which must be equal where a connector has a ``problem``.

    ``problem``: why KV cannot move between the sizes of prefill and decode; "" where it can.
    """

    def why(ctx: RankContext) -> str:
        return problem(ctx, sizes(ctx.spec.prefill).tp, sizes(ctx.spec.decode).tp)

    def tensor_parallel_size(ctx: RankContext, role: Role) -> tuple[int | None, Source]:
        size, source = split_attention(ctx, role)
        return (size if why(ctx) else None), source

    return SharedValue(name="attention-tp", computed=tensor_parallel_size, why=why)


def shared_context_parallel(versions: str = "") -> SharedValue:
    """The decode context parallelism of prefill and decode, for a connector whose peers do not tell it each other.

    ``versions``: of the engine, where they do not.
    """
    return SharedValue(
        name="decode-context-parallel",
        flag=CONTEXT_PARALLEL,
        meaning=value_meanings.size,
        why="each rank has another part of the KV",
        versions=versions,
    )
