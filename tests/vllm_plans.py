"""Plans of the vLLM plugin for its tests, and what is read from them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from disagg_run import (
    LaunchPlan,
    LaunchSpec,
    Nic,
    Node,
    NodeFacts,
    ParityError,
    PlannedProcess,
    RoleSpec,
    build_host,
    plan,
)
from disagg_run.spec.reading import read_spec
from tests.plan_values import source as source
from tests.plan_values import value as value

HOST = build_host()
KIMI, M25, M3 = "Kimi-K2.5-MXFP4", "MiniMax-M2.5", "MiniMax-M3-MXFP4"
CONTRACT = {
    "ENGINE": "vllm-disagg",
    "MODEL_NAME": KIMI,
    "MODEL_DIR": "/models",
    "IPADDRS": "10.0.0.1,10.0.0.2",
    "xP": "1",
    "yD": "1",
    "PREFILL_TP_SIZE": "8",
    "DECODE_TP_SIZE": "8",
}


def spec(model: str = KIMI, nodes: int | None = 2, **fields: Any) -> LaunchSpec:
    """A spec on nodes 10.0.0.1 and up; None = unbound."""
    named = [Node(address=f"10.0.0.{number}") for number in range(1, (nodes or 0) + 1)]
    return LaunchSpec(engine="vllm-disagg", model=model, nodes=named, **fields)


def planned(model: str = KIMI, *, facts: Mapping[int, NodeFacts] | None = None, **fields: Any) -> LaunchPlan:
    """The plan of ``spec``."""
    return plan(spec(model, **fields), facts, host=HOST)


def contract(facts: Mapping[int, NodeFacts] | None = None, **environ: str) -> LaunchPlan:
    """The plan for a job script's environment."""
    asked = read_spec(options={}, recipe=None, environ={**CONTRACT, **environ}, host=HOST)
    return plan(asked, facts, host=HOST)


def transfer(process: PlannedProcess) -> dict[str, Any]:
    """The connector's JSON, its extra config beside its other keys."""
    config: dict[str, Any] = json.loads(value(process, "--kv-transfer-config"))
    return {**config, **config.pop("kv_connector_extra_config", {})}


def warnings(launch: LaunchPlan) -> list[str]:
    """The plan's warnings but that of the discovery port, whose public default lies in the ephemeral range."""
    return [each.message for each in launch.warnings if "36367" not in each.message]


def nic(name: str, *addresses: str, gids: Mapping[int, str] | None = None, state: str = "ACTIVE") -> Nic:
    """A device of an ionic NIC."""
    return Nic(name=name, driver="ionic", state=state, netdev=f"net_{name}", addresses=addresses, gids=gids or {})


def check_sizes(model: str, prefill: int, decode: int, problem: str, **fields: Any) -> None:
    """Tensor-parallel sizes of prefill and decode are refused with ``problem`` unless waived; "" = they are planned."""
    roles = {"prefill": RoleSpec(tp=prefill), "decode": RoleSpec(tp=decode)}
    fields = {"gpus_per_node": 48, **roles, **fields}  # all of the sizes divide 48
    if not problem:
        assert planned(model, **fields)
        return
    said = rf"attention-tp is {prefill} for prefill-0 .* but {decode} for decode-0 .*{problem}"
    with pytest.raises(ParityError, match=said):
        planned(model, **fields)
    assert planned(model, waive=["attention-tp"], **fields)
