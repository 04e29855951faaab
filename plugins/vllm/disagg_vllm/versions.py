"""The vLLM versions that this plugin knows, the flag catalogues taken from them, and what changed between them."""

from __future__ import annotations

from pathlib import Path

from packaging.version import Version

from disagg_run.context import RankContext
from disagg_run.records import CatalogueRef, GoneFlag

#: Version whose parser the catalogue was taken from; planned for where nothing tells another.
KNOWN = "0.32.0"

#: MoRI-IO came with 0.14.
RANGE = ">=0.14"

ROUTER = "0.1.17"
#: Image of that router's generation, from the public launcher.
ROUTER_IMAGE = "vllm/vllm-router:nightly-20260716-1fbcde7"

#: First release whose MoRI-IO servers register with the router in the form that ROUTER reads.
REGISTRATION = "0.20.0"

_CATALOGUES = Path(__file__).parent / "catalogues"

CATALOGUES = (
    CatalogueRef(program="server", version=KNOWN, file=_CATALOGUES / "vllm-serve-0.32.0.json"),
    CatalogueRef(program="router", version=ROUTER, file=_CATALOGUES / "vllm-router-0.1.17.json"),
)

#: Flags of older recipes; each is in no parser from ``since`` on.
GONE = (
    # Never was a flag of vLLM, but public launchers gave it (R4).
    GoneFlag(name="--enable-dp-attention", since="0", successor="--data-parallel-size (--dp-attention of disagg-run)"),
)


def at_least(ctx: RankContext, version: str) -> bool:
    """Whether the plan is for ``version`` or a later one; its own pre-releases count as it."""
    return Version(ctx.engine_version).release >= Version(version).release
