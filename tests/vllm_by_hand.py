"""Plans of vLLM with something given by hand: words for servers or the router, variables."""

from __future__ import annotations

import shlex
from typing import Any

import attrs
import pytest

from disagg_run import DisaggError, LaunchPlan, Node, ProcessSpec, RoleSpec, plan
from disagg_run.spec.model import RouterSpec
from tests.engine_plans import typed
from tests.vllm_plans import HOST, planned, spec

#: What a plan is asked for beside what is given by hand.
PLANS: dict[str, dict[str, Any]] = {
    "moriio": {},
    "old": {"engine_version": "0.22.1"},
    "0.28": {"engine_version": "0.28.0"},
    "external": {"router": RouterSpec(mode="external")},
    "nixl": {"connector": "vllm-nixl"},
    "nixl-0.28": {"connector": "vllm-nixl", "engine_version": "0.28.0"},
    "files": {"connector": "vllm-shared-storage", "settings": {"shared_storage_path": "/shared"}},
    "ep": {"prefill": RoleSpec(expert_parallel=True)},
    "dep": {side: RoleSpec(tp=8, dp_attention=True) for side in ("prefill", "decode")},
    "one node": {"nodes": 1, "pack": True, **{side: RoleSpec(tp=4) for side in ("prefill", "decode")}},
}
PLANS["one node, nixl"] = {**PLANS["one node"], "connector": "vllm-nixl"}
#: Workers over two nodes: each rank on both, or whole ranks on each, which the first one serves or both.
PLANS["tp over nodes"] = {
    "nodes": 4,
    "connector": "vllm-nixl",
    **{side: RoleSpec(tp=16) for side in ("prefill", "decode")},
}
PLANS["dp over nodes"] = {
    **PLANS["tp over nodes"],
    **{side: RoleSpec(tp=16, dp_attention=True) for side in ("prefill", "decode")},
}
PLANS["hybrid"] = {**PLANS["dp over nodes"], "settings": {"dp_hybrid": True}}


def given(kind: str, words: str, target: str = "") -> LaunchPlan:
    """The plan ``kind`` with words for all servers, the router, or the process ``target``."""
    asked = dict(PLANS[kind])
    args = [typed(*shlex.split(words))]
    if target == "router":
        asked["router"] = RouterSpec(args=args)
    elif target:
        asked["processes"] = {target: ProcessSpec(args=args)}
    else:
        asked["args"] = args
    return planned(**asked)


def variable(kind: str, name: str, text: str) -> LaunchPlan:
    """The plan ``kind`` with a variable for all servers."""
    return planned(env={name: text}, **PLANS[kind])


def message(caught: pytest.ExceptionInfo[DisaggError]) -> str:
    """The one line that was said."""
    text = str(caught.value)
    assert "\n" not in text
    return text


def on_loopback(host: str) -> LaunchPlan:
    """A plan for nodes 127.0.0.1 and 127.0.0.2 with ``--host`` for prefill."""
    asked = spec(processes={"prefill-0": ProcessSpec(args=[typed("--host", host)])})
    return plan(attrs.evolve(asked, nodes=[Node(address=f"127.0.0.{number}") for number in (1, 2)]), host=HOST)
