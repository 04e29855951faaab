"""What prefill and decode must have in common, whatever the connector; flags of ATOM ffdf3bb5."""

from __future__ import annotations

from disagg_atom import models
from disagg_run.context import RankContext
from disagg_run.declarations import SharedValue
from disagg_run.sources import Source
from disagg_run.spec.model import Role

_MOVED = "KV is moved as it lies in memory"
_DRAFT = "the draft's KV moves along"
_PARTS = "each rank of a group holds its own part of the KV"


def pipeline_stages(ctx: RankContext, role: Role) -> tuple[int, Source]:
    """Stages of a role, and who set them."""
    return ctx.spec.role(role).pp, ctx.spec.source(f"{role}.pp")


ENGINE = (
    SharedValue(
        name="attention-tp",
        computed=models.attention_tp,
        why="this model is not known to work otherwise (DP attention counts as 1)",
    ),
    SharedValue(
        name="pipeline-parallel-size",
        computed=pipeline_stages,
        why="a rank of decode asks for KV at the port of prefill's rank with its own indexes",
    ),
    SharedValue(name="decode-context-parallel-size", flag="--decode-context-parallel-size", why=_PARTS),
    SharedValue(name="decode-context-parallel-size", flag="--dcp-config", why=_PARTS),
    SharedValue(name="block-size", flag="--block-size", why="KV moves block by block"),
    SharedValue(name="kv-cache-dtype", flag="--kv_cache_dtype", why=_MOVED),
    SharedValue(name="index-cache-dtype", flag="--index-cache-dtype", why=_MOVED),
    SharedValue(name="speculation-method", flag="--method", why=_DRAFT),
    SharedValue(name="speculation-tokens", flag="--num-speculative-tokens", why=_DRAFT),
    SharedValue(name="draft-model", flag="--draft-model", why=_DRAFT),
    SharedValue(name="served-model-name", flag="--served-model-name", why="the router sends both one request"),
    SharedValue(name="max-model-len", flag="--max-model-len", why="decode would wait for what prefill refuses"),
)
