"""Plans of the ATOM plugin for tests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from disagg_run import LaunchPlan, LaunchSpec, Nic, Node, NodeFacts, RoleSpec, build_host, plan
from disagg_run.spec.reading import read_spec

HOST = build_host()
CONTRACT = {
    "ENGINE": "atom-disagg",
    "MODEL_NAME": "DeepSeek-V4-Pro",
    "MODEL_DIR": "/models",
    "IPADDRS": "10.0.0.1,10.0.0.2",
    "xP": "1",
    "yD": "1",
    "PREFILL_TP_SIZE": "8",
    "DECODE_TP_SIZE": "8",
}


def spec(model: str = "DeepSeek-V4-Pro", nodes: int = 2, **fields: Any) -> LaunchSpec:
    """A spec on nodes 10.0.0.1 and up."""
    named = [Node(address=f"10.0.0.{number}") for number in range(1, nodes + 1)]
    return LaunchSpec(engine="atom-disagg", model=model, nodes=named, **fields)


def planned(
    model: str = "DeepSeek-V4-Pro", *, facts: Mapping[int, NodeFacts] | None = None, **fields: Any
) -> LaunchPlan:
    """The plan for such a spec."""
    return plan(spec(model, **fields), facts, host=HOST)


def contract(**environ: str) -> LaunchPlan:
    """The plan for a job script's environment."""
    return plan(read_spec(options={}, recipe=None, environ={**CONTRACT, **environ}, host=HOST), host=HOST)


def two_on_a_node(**fields: Any) -> LaunchPlan:
    """Prefill and decode, four GPUs each, on one node."""
    return planned(
        nodes=1, prefill=RoleSpec(tp=4, dp_attention=True), decode=RoleSpec(tp=4, dp_attention=True), **fields
    )


def nic(name: str, *addresses: str, gids: Mapping[int, str] | None = None, state: str = "ACTIVE") -> Nic:
    """A device of an ionic NIC."""
    return Nic(name=name, driver="ionic", state=state, netdev=f"net_{name}", addresses=addresses, gids=gids or {})
