"""The SGLang versions that this plugin knows: their flag catalogues, and how each spells what all of them can do."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path

from disagg_run.declarations import CatalogueRef, Combination, GoneFlag
from disagg_run.records import Flag, flag
from disagg_run.releases import at_least

#: Versions whose parsers were read; the spellings between two of them are those of the lower one.
KNOWN = ("0.5.9", "0.5.12", "0.5.14", "0.5.16", "0.5.19", "0.5.23")
NEWEST = KNOWN[-1]
ROUTER = "0.3.2"

RANGE = ">=0.5.9"

_CATALOGUES = Path(__file__).parent / "catalogues"

CATALOGUES = (
    *(
        CatalogueRef(program="server", version=version, file=_CATALOGUES / f"sglang-launch-server-{version}.json")
        for version in KNOWN
    ),
    CatalogueRef(program="router", version=ROUTER, file=_CATALOGUES / f"sglang-router-{ROUTER}.json"),
)

#: The real router in front of stand-ins made from the parsers of these releases; the protocol between them is the same
#: in all.
TESTED = (
    Combination(engine=f">={KNOWN[0]},<={NEWEST}", connectors=("sglang-mori", "sglang-mooncake"), router=f"=={ROUTER}"),
)

#: Flags that one of the known parsers had and a later one has not: name, first known version without it, successor.
_GONE = (
    ("--disable-hicache-numa-detect", "0.5.12", ""),
    ("--disaggregation-decode-dp", "0.5.12", ""),
    ("--disaggregation-decode-tp", "0.5.12", ""),
    ("--disaggregation-prefill-pp", "0.5.12", ""),
    ("--ds-channel-config-path", "0.5.12", ""),
    ("--ds-heavy-channel-num", "0.5.12", ""),
    ("--ds-heavy-channel-type", "0.5.12", ""),
    ("--ds-heavy-token-num", "0.5.12", ""),
    ("--ds-sparse-decode-threshold", "0.5.12", ""),
    ("--enable-double-sparsity", "0.5.12", ""),
    ("--mm-max-concurrent-calls", "0.5.12", ""),
    ("--mm-per-request-timeout", "0.5.12", ""),
    ("--multi-item-scoring-delimiter", "0.5.12", ""),
    ("--speculative-ngram-branch-length", "0.5.12", ""),
    ("--speculative-ngram-max-match-window-size", "0.5.12", ""),
    ("--speculative-ngram-min-match-window-size", "0.5.12", ""),
    ("--custom-sigquit-handler", "0.5.14", ""),
    ("--debug-tensor-dump-inject", "0.5.14", ""),
    ("--enable-nan-detection", "0.5.14", ""),
    ("--enable-piecewise-cuda-graph", "0.5.14", ""),
    ("--hybrid-kvcache-ratio", "0.5.14", "--swa-full-tokens-ratio"),
    ("--no-record-nolora-graph", "0.5.14", ""),
    ("--record-nolora-graph", "0.5.14", ""),
    ("--enable-deepep-waterfill", "0.5.16", ""),
    ("--optimistic-prefill-retries", "0.5.16", ""),
    ("--torchao-config", "0.5.19", ""),
    ("--collect-tokens-histogram", "0.5.23", ""),
    ("--cuda-graph-bs", "0.5.23", "--cuda-graph-bs-decode"),
    ("--cuda-graph-max-bs", "0.5.23", "--cuda-graph-max-bs-decode"),
    ("--cuda-graph-tc-compiler", "0.5.23", ""),
    ("--disable-piecewise-cuda-graph", "0.5.23", "--cuda-graph-backend-prefill=disabled"),
    ("--dsa-prefill-cp-mode", "0.5.23", "--cp-strategy"),
    ("--elastic-ep-rejoin", "0.5.23", ""),
    ("--enable-breakable-cuda-graph", "0.5.23", "--cuda-graph-backend-prefill=breakable"),
    ("--enable-dsa-prefill-context-parallel", "0.5.23", "--enable-prefill-cp"),
    ("--enable-expert-distribution-metrics", "0.5.23", ""),
    ("--enable-gdn-replayssm-spec", "0.5.23", "--enable-linear-replayssm-spec"),
    ("--enable-nsa-prefill-context-parallel", "0.5.23", "--enable-prefill-cp"),
    ("--enable-prefill-context-parallel", "0.5.23", "--enable-prefill-cp"),
    ("--enforce-piecewise-cuda-graph", "0.5.23", ""),
    ("--keep-mm-feature-on-device", "0.5.23", ""),
    ("--mamba-scheduler-strategy", "0.5.23", "--mamba-radix-cache-strategy"),
    ("--nsa-decode-backend", "0.5.23", "--dsa-decode-backend"),
    ("--nsa-prefill-backend", "0.5.23", "--dsa-prefill-backend"),
    ("--nsa-prefill-cp-mode", "0.5.23", "--cp-strategy"),
    ("--piecewise-cuda-graph-compiler", "0.5.23", ""),
    ("--piecewise-cuda-graph-max-tokens", "0.5.23", "--cuda-graph-max-bs-prefill"),
    ("--piecewise-cuda-graph-tokens", "0.5.23", "--cuda-graph-bs-prefill"),
    ("--prefill-cp-mode", "0.5.23", "--cp-strategy"),
    ("--prefill-round-robin-balance", "0.5.23", ""),
    ("--speculative-dflash-draft-window-size", "0.5.23", "--speculative-draft-window-size"),
    ("--speculative-skip-dp-mlp-sync", "0.5.23", ""),
    ("--stream-output", "0.5.23", "--incremental-streaming-output"),
)

GONE_FLAGS = tuple(GoneFlag(name=name, since=since, successor=successor) for name, since, successor in _GONE)


@functools.cache
def graph_sizes(version: str, count: int) -> Flag:
    """Decode batch sizes 1 to ``count`` to capture graphs for; before 0.5.14 the flag did not say ``-decode``."""
    name = "--cuda-graph-bs-decode" if at_least(version, "0.5.14") else "--cuda-graph-bs"
    return flag(name, *range(1, count + 1))


def no_graphs(version: str) -> tuple[Flag, ...]:
    """Capture no graphs at all: one switch up to 0.5.12, from 0.5.14 a backend for each phase."""
    if at_least(version, "0.5.14"):
        return flag("--cuda-graph-backend-decode", "disabled"), flag("--cuda-graph-backend-prefill", "disabled")
    return (flag("--disable-cuda-graph"),)


def dp_attention(version: str, size: int) -> tuple[Flag, ...]:
    """Attention in ``size`` data-parallel groups; in 0.5.23 ``--dp-size`` counts replicas of the whole model again."""
    if at_least(version, "0.5.23"):
        return flag("--attn-dp-size", size), flag("--dp-size", 1, implied=True)
    return flag("--dp-size", size), flag("--enable-dp-attention")


#: In every public recipe: decode's requests beyond the running ones that may already receive KV.
_DECODE_SLOTS = 32


def decode_slots_variable(version: str) -> Mapping[str, str]:
    """Decode's further slots as 0.5.12 reads them; nothing before does, and from 0.5.14 they are a flag."""
    if at_least(version, "0.5.12") and not at_least(version, "0.5.14"):
        return {"SGLANG_DISAGGREGATION_NUM_PRE_ALLOCATE_REQS": str(_DECODE_SLOTS)}
    return {}


def decode_slots(version: str, running: int | None) -> tuple[Flag, ...]:
    """The same as a flag, for a DP rank that runs ``running`` requests; None = as many as fit.

    Up to 32 the engine has twice as many slots by itself, and 0.5.12 ignored the variable then.
    """
    if not at_least(version, "0.5.14") or (running is not None and running <= _DECODE_SLOTS):
        return ()
    return (flag("--disaggregation-decode-extra-slots", _DECODE_SLOTS),)


def catalogue_version(version: str) -> str:
    """The known version whose parser stands for ``version``: itself, else the next lower, else the lowest."""
    return max((known for known in KNOWN if at_least(version, known)), key=KNOWN.index, default=KNOWN[0])
