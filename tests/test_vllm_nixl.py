"""NIXL between vLLM servers: which sizes, where peers meet, over which devices."""

from __future__ import annotations

import pytest

from disagg_run import NodeFacts, RoleSpec
from tests.vllm_plans import KIMI, M3, M25, check_sizes, nic, planned, source, value


@pytest.mark.parametrize(
    ("model", "prefill", "decode", "problem"),
    [
        (KIMI, 8, 2, ""),
        (M25, 4, 8, ""),
        (M25, 8, 4, ""),
        (M25, 16, 8, "holds copies of the model's 8 KV heads"),
        (M3, 4, 8, ""),
        (M3, 8, 4, "it is not known"),
        (M25, 6, 8, "multiple"),
    ],
)
def test_B61_unequal_sizes_are_refused_where_nixl_cannot_move_kv(
    model: str, prefill: int, decode: int, problem: str
) -> None:
    check_sizes(model, prefill, decode, problem, connector="vllm-nixl")


def test_nixl_s_router_is_told_every_head_and_looks_at_once() -> None:
    launch = planned(nodes=4, connector="vllm-nixl", prefill=RoleSpec(workers=2), decode=RoleSpec(workers=2))
    argv = launch.process("router").argv
    urls = [(word, argv[index + 1]) for index, word in enumerate(argv) if word in ("--prefill", "--decode")]
    assert urls == [
        ("--prefill", "http://10.0.0.1:2584"),
        ("--prefill", "http://10.0.0.2:2584"),
        ("--decode", "http://10.0.0.3:2584"),
        ("--decode", "http://10.0.0.4:2584"),
    ]
    assert value(launch.process("router"), "--kv-connector") == "nixl"
    assert value(launch.process("router"), "--worker-startup-check-interval") == "1"
    assert "discovery" not in launch.process("router").ports
    assert launch.warnings == ()


@pytest.mark.parametrize("connector", ["vllm-moriio", "vllm-nixl"])
def test_B19_the_side_channel_s_host_is_every_server_s_own_address(connector: str) -> None:
    launch = planned(nodes=3, connector=connector, prefill=RoleSpec(workers=2))
    found = {name: launch.process(name).env["VLLM_NIXL_SIDE_CHANNEL_HOST"] for name in launch.process_names()[:1]}
    found |= {name: launch.process(name).env["VLLM_NIXL_SIDE_CHANNEL_HOST"] for name in ("prefill-1", "decode-0")}
    assert found == {"prefill-0": "10.0.0.1", "prefill-1": "10.0.0.2", "decode-0": "10.0.0.3"}
    assert source(launch, "decode-0", "env/VLLM_NIXL_SIDE_CHANNEL_HOST").endswith("the node's address")


def test_each_data_parallel_rank_has_a_side_channel() -> None:
    launch = planned(nodes=1, connector="vllm-nixl", prefill=RoleSpec(tp=4, dp_attention=True), decode=RoleSpec(tp=4))
    prefill, decode = launch.process("prefill-0"), launch.process("decode-0")
    assert prefill.port_counts["side_channel"] == 4
    assert decode.ports["side_channel"] >= prefill.ports["side_channel"] + 4
    for process in (prefill, decode):
        assert process.env["VLLM_NIXL_SIDE_CHANNEL_PORT"] == str(process.ports["side_channel"])


def test_only_nodes_with_a_scheduler_open_a_side_channel() -> None:
    launch = planned(nodes=3, connector="vllm-nixl", decode=RoleSpec(tp=16))
    assert "side_channel" in launch.process("decode-0").ports
    assert "side_channel" not in launch.process("decode-0.1").ports
    fixed = planned(connector="vllm-nixl", settings={"side_channel_port": 5700})
    assert fixed.process("decode-0").env["VLLM_NIXL_SIDE_CHANNEL_PORT"] == "5700"


def test_nixl_may_use_the_rdma_device_that_it_is_given() -> None:
    facts = {1: NodeFacts(nics=[nic("rdma0")])}
    env = planned(facts=facts, connector="vllm-nixl").process("decode-0").env
    assert env["UCX_NET_DEVICES"] == "rdma0:1"
    assert "rc" in env["UCX_TLS"].split(",")
