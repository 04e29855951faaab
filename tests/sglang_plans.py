"""Plans of the SGLang plugin for tests, and how to read them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from disagg_run import LaunchPlan, LaunchSpec, Node, NodeFacts, PlannedProcess, build_host, plan
from disagg_run.spec.reading import read_spec
from tests.plan_values import source as source

HOST = build_host()
CONTRACT = {
    "ENGINE": "sglang-disagg",
    "MODEL_NAME": "DeepSeek-R1-0528",
    "MODEL_DIR": "/models",
    "IPADDRS": "10.0.0.1,10.0.0.2",
    "xP": "1",
    "yD": "1",
    "PREFILL_TP_SIZE": "8",
    "DECODE_TP_SIZE": "8",
}


def spec(model: str = "DeepSeek-R1-0528", nodes: int = 2, network: str = "10.0.0.{}", **fields: Any) -> LaunchSpec:
    """A spec on nodes 10.0.0.1 and up."""
    named = [Node(address=network.format(number)) for number in range(1, nodes + 1)]
    return LaunchSpec(engine="sglang-disagg", model=model, nodes=named, **fields)


def planned(
    model: str = "DeepSeek-R1-0528", *, facts: Mapping[int, NodeFacts] | None = None, **fields: Any
) -> LaunchPlan:
    """The plan for such a spec."""
    return plan(spec(model, **fields), facts, host=HOST)


def contract(facts: Mapping[int, NodeFacts] | None = None, **environ: str) -> LaunchPlan:
    """The plan for a job script's environment."""
    return plan(read_spec(options={}, recipe=None, environ={**CONTRACT, **environ}, host=HOST), facts, host=HOST)


def values(process: PlannedProcess, flag: str) -> list[str]:
    """The values of a flag that stands once."""
    assert process.argv.count(flag) == 1, process.argv
    found = []
    for word in process.argv[process.argv.index(flag) + 1 :]:
        if word.startswith("--"):
            break
        found.append(word)
    return found


def value(process: PlannedProcess, flag: str) -> str:
    """The one value of a flag that stands once."""
    (found,) = values(process, flag)
    return found
