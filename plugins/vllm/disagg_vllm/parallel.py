"""How a worker is spread over GPUs and nodes, in vLLM's terms."""

from __future__ import annotations

import attrs

from disagg_run.context import ProcessContext
from disagg_run.spec.model import RoleSpec


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


def local_ranks(ctx: ProcessContext) -> range:
    """The data-parallel ranks of the process's node where whole ranks lie on it; all of the worker otherwise."""
    size = sizes(ctx.role_spec)
    if not spreads_ranks(ctx):
        return range(size.dp)
    here = size.dp // ctx.process.node_count
    return range(ctx.process.node_rank * here, (ctx.process.node_rank + 1) * here)
