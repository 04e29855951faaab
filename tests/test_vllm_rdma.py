"""RDMA under vLLM's connectors: devices, routes, addresses and GIDs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from disagg_run import LaunchPlan, Nic, NodeFacts, SpecError
from tests.vllm_plans import nic, planned, source

FE80, FD00 = "fe80::1", "fd00::1"


def test_R27_a_node_without_an_rdma_device_is_refused_and_nothing_empty_is_written() -> None:
    facts = {0: NodeFacts(), 1: NodeFacts(nics=[nic("rdma0", state="DOWN")])}
    with pytest.raises(SpecError, match=r"rank 0 \(10\.0\.0\.1\) has no RDMA device that is up.*--ib-devices"):
        planned(facts=facts)
    with pytest.raises(SpecError, match=r"rank 1.*rdma0 is DOWN"):
        planned(facts={1: facts[1]})
    variables = ("NCCL_IB_HCA", "UCX_NET_DEVICES")
    for launch in (planned(facts=facts, waive=["ib-devices"]), planned(facts=facts, simulate=True), planned()):
        assert not [name for name in variables if name in launch.process("decode-0").env]
    # UCX goes over TCP where there is no device.
    assert planned(facts=facts, connector="vllm-nixl")


def rdma_facts(address: str, device: str = "benic1p1") -> Mapping[int, NodeFacts]:
    return {0: NodeFacts(nics=[Nic(name="rdma0", state="ACTIVE", netdev=device, addresses=["fe80::1", address])])}


def routes(launch: LaunchPlan) -> list[tuple[str, ...]]:
    return [process.argv for process in launch.ranks[0].processes() if process.kind == "setup"]


@pytest.mark.parametrize(("address", "peer"), [("192.168.1.10", "192.168.1.11"), ("192.168.1.11", "192.168.1.10")])
@pytest.mark.parametrize("connector", ["vllm-moriio", "vllm-nixl"])
def test_R23_the_peer_of_a_link_of_two_addresses_is_the_other_one(address: str, peer: str, connector: str) -> None:
    launch = planned(facts=rdma_facts(address), connector=connector)
    assert routes(launch) == [("ip", "route", "replace", "192.168.1.0/24", "via", peer, "dev", "benic1p1")]
    assert launch.process("prefill-0").env["VLLM_NIXL_SIDE_CHANNEL_HOST"] == address
    assert [(edge.process, edge.until) for edge in launch.process("prefill-0").after] == [("rdma-route", "ready")]
    assert not launch.process("decode-0").after


@pytest.mark.parametrize(
    ("facts", "fields"),
    [
        (rdma_facts("10.1.0.10"), {}),
        (rdma_facts("192.168.1.10", device=""), {}),
        (rdma_facts("192.168.1.10"), {"settings": {"rdma_route": False}}),
        (rdma_facts("192.168.1.10"), {"simulate": True}),
        (None, {}),
    ],
)
def test_no_route_is_made_where_none_is_needed(facts: Mapping[int, NodeFacts] | None, fields: dict[str, Any]) -> None:
    assert routes(planned(facts=facts, **fields)) == []


def test_the_route_may_be_made_from_inside_a_container() -> None:
    launch = planned(facts=rdma_facts("192.168.1.10"), image="vllm:x")
    capabilities = [
        group.container.needs.capabilities for rank in launch.ranks for group in rank.groups if group.container
    ]
    assert capabilities[0] == ("NET_ADMIN",)
    assert "NET_ADMIN" not in capabilities[-1]


def test_B26_the_data_address_is_that_of_the_first_device_and_the_control_address_the_node_s() -> None:
    facts = {1: NodeFacts(nics=[nic("rdma0", "fd00::1"), nic("rdma1", "172.16.0.1")])}
    launch = planned(facts=facts, ib_devices=["rdma1", "rdma0"])
    decode = launch.process("decode-0")
    assert decode.env["VLLM_NIXL_SIDE_CHANNEL_HOST"] == "172.16.0.1"
    assert decode.env["VLLM_HOST_IP"] == "10.0.0.2"
    assert source(launch, "decode-0", "env/VLLM_NIXL_SIDE_CHANNEL_HOST").endswith("net_rdma1 behind rdma1")
    assert decode.env["UCX_NET_DEVICES"] == "rdma1:1"


@pytest.mark.parametrize(
    ("nics", "index"),
    [
        ([nic("a")], "1"),
        ([nic("a", gids={0: FE80, 1: FD00})], "1"),
        ([nic("a", gids={0: FE80, 1: FE80, 3: "::ffff:10.0.0.1"})], "3"),
        ([nic("a", gids={0: FE80, 1: FE80, 2: FD00}), nic("b", gids={0: FE80, 1: FD00, 2: FD00})], "2"),
        ([nic("a", gids={0: FE80, 2: FD00}), nic("b", gids={0: FE80})], "1"),
        ([nic("a", gids={0: FE80, 1: "::", 2: "no gid", 3: FD00})], "3"),
    ],
)
def test_B23_the_gid_is_routable_on_every_device(nics: list[Nic], index: str) -> None:
    launch = planned(facts={0: NodeFacts(nics=nics)})
    assert launch.process("prefill-0").env["UCX_IB_GID_INDEX"] == index
