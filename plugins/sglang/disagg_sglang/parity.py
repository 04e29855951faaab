"""What prefill and decode must have in common, whatever the connector.

Flags are those of the parsers of 0.5.9 to 0.5.23; what each does to KV is from the sources of 0.5.9, 0.5.12 and 0.5.23.
The engine compares some of it itself, the later the release the more, when the first request is served. What it does
not compare arrives as garbage.
"""

from __future__ import annotations

from disagg_run import value_meanings
from disagg_run.context import RankContext
from disagg_run.declarations import SharedValue
from disagg_run.sources import Source
from disagg_run.spec.model import Role
from disagg_sglang import models, speculation

_LAYOUT = "it fixes how KV lies in memory"
_MOVED = "KV is moved as it lies in memory"
_DRAFT = "the draft's KV and state move along"
_STATE = "a linear layer's state is moved as it lies in memory"


def pipeline_stages(ctx: RankContext, role: Role) -> tuple[int | None, Source]:
    """Stages of a role and who set them; None where decode has one, which takes the KV of all of prefill's.

    Any other pair fails an assertion when the first request comes (``disaggregation/common/conn.py``).
    """
    stages = ctx.spec.role(role).pp
    return (None if ctx.spec.decode.pp == 1 else stages), ctx.spec.source(f"{role}.pp")


ENGINE = (
    SharedValue(
        name="attention-tp",
        computed=models.attention_tp,
        why="this model is not known to work otherwise (DP attention counts as 1)",
    ),
    SharedValue(
        name="pipeline-parallel-size", computed=pipeline_stages, why="decode has as many stages as prefill, or one"
    ),
    SharedValue(
        name="decode-context-parallel-size",
        flag="--dcp-size",
        meaning=value_meanings.size,
        why="each rank of a group holds its own part of the KV (0.5.23 spreads that of a prefill without such groups"
        " itself, for models with latent attention alone)",
    ),
    SharedValue(name="page-size", flag="--page-size", why="KV moves page by page"),
    SharedValue(name="kv-cache-dtype", flag="--kv-cache-dtype", why=_MOVED),
    SharedValue(
        name="dtype", flag="--dtype", meaning=value_meanings.number_format, why="KV has it where it has none of its own"
    ),
    SharedValue(name="indexer-dtype", flag="--qsa-indexer-dtype", why=_LAYOUT),
    SharedValue(name="indexer-dtype", flag="--enable-deepseek-v4-fp4-indexer", why=_LAYOUT),
    SharedValue(name="mamba-ssm-dtype", flag="--mamba-ssm-dtype", why=_STATE),
    SharedValue(name="mamba-ssm-dtype", env="SGLANG_MAMBA_SSM_DTYPE", why=_STATE),
    SharedValue(name="kv-layout", flag="--dsv4-attn-backend", why="each backend lays KV out its own way"),
    # 0.5.12 does not read it, 0.5.23 does.
    SharedValue(name="kv-layout-variable", env="SGLANG_DSV4_KV_LAYOUT", why=_MOVED, versions=">0.5.12"),
    SharedValue(name="speculation", flag="--speculative-algorithm", meaning=speculation.algorithm, why=_DRAFT),
    SharedValue(name="speculation-tokens", flag="--speculative-num-draft-tokens", why=_DRAFT),
    SharedValue(name="speculation-steps", flag="--speculative-num-steps", why=_DRAFT),
    SharedValue(name="speculation-topk", flag="--speculative-eagle-topk", why=_DRAFT),
    SharedValue(name="draft-model", flag="--speculative-draft-model-path", why=_DRAFT),
    SharedValue(name="draft-kv-cache-dtype", flag="--speculative-draft-kv-cache-dtype", why=_MOVED),
    SharedValue(name="context-length", flag="--context-length", why="decode would wait for what prefill refuses"),
    SharedValue(name="served-model-name", flag="--served-model-name", why="the router sends both one request"),
)
