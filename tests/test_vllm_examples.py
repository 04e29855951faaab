"""The run files of vLLM in ``examples/``: they plan without a remark, and as the public launchers ran their likes."""

from __future__ import annotations

import json

import attrs
import pytest

from disagg_run import LaunchPlan, NodeFacts, ParityError, PlannedProcess, PortError, TopologyError
from disagg_run.running.teardown import planned_ports
from tests.example_plans import EXAMPLES, differing, planned
from tests.parity.case import load
from tests.plan_values import source, value
from tests.vllm_plans import nic, transfer

CACHE = "/models/models--amd--Kimi-K2.5-MXFP4"
DISAGG, EXPERTS = "kimi-fp4-mi355x-vllm-disagg", "minimax-m25-fp8-mi355x-vllm-ep"
HF_CACHE, PORTS, ROUTE = (f"kimi-fp4-mi355x-vllm-{name}" for name in ("hf-cache", "ports", "rdma-route"))
WRITE, AGENTIC, PATCHED = (f"kimi-fp4-mi355x-vllm-{name}" for name in ("dep-write", "nixl-agentic", "patched"))
HYBRID, HEADLESS, WIDE = (f"kimi-fp4-vllm-{name}" for name in ("dp-hybrid", "dp-over-nodes", "tp-over-nodes"))
ONE_NODE, IPV6, OVERRIDES = (f"kimi-fp4-vllm-{name}" for name in ("one-node", "ipv6", "overrides"))
FOUR_GPUS = "minimax-m3-fp4-vllm-tp4-mtp"

_DISCOVERY = "flag --kv-transfer-config kv_connector_extra_config.proxy_ping_port"
#: Run files move the router's discovery port out of the range from which the kernel takes ports for connections.
MOVED = {"router": {"flag --vllm-discovery-address"}}


def servers(*items: str, decode: int = 1) -> dict[str, set[str]]:
    """What each server has of its own beside the moved discovery port."""
    names = ("prefill-0", *(f"decode-{number}" for number in range(decode)))
    return {**MOVED, **{name: {_DISCOVERY, *items} for name in names}}


_EXTRA = "flag --kv-transfer-config kv_connector_extra_config"
#: Run file -> the public case that it is, and what is another's on purpose, by process.
LIKES: dict[str, tuple[str, dict[str, set[str]]]] = {
    DISAGG: ("vllm/kimi_1k1k_1p2d_tp8_decode_ep8", servers(decode=2)),
    EXPERTS: ("vllm/minimax_m25_1p2d_ep8", servers(decode=2)),
    HF_CACHE: ("vllm/kimi_1p1d_hf_snapshot", servers("env HF_HUB_OFFLINE")),
    ROUTE: ("vllm/kimi_1p1d_rdma_subnet", servers()),
    PORTS: (
        "vllm/kimi_1p1d_ports",
        {
            **servers(f"{_EXTRA}.handshake_port", f"{_EXTRA}.notify_port"),
            "router": {"flag --vllm-discovery-address", "flag --prometheus-port"},
        },
    ),
}
#: Run files that no public case is like: what they are for is tested below, the last two in ``test_vllm_cpu``.
OWN = {
    *(WRITE, AGENTIC, PATCHED, HYBRID, HEADLESS, WIDE, ONE_NODE, IPV6, OVERRIDES, FOUR_GPUS),
    *("vllm-cpu-1p1d", "vllm-cpu-2p2d"),
}


def both(launch: LaunchPlan) -> tuple[PlannedProcess, PlannedProcess]:
    """The first prefill and the first decode server."""
    return launch.process("prefill-0"), launch.process("decode-0")


def test_every_run_file_is_compared_or_has_a_test_of_its_own() -> None:
    assert {path.stem for path in EXAMPLES.glob("*vllm*.yaml")} == {*LIKES, *OWN}


@pytest.mark.parametrize("name", LIKES)
def test_a_run_file_gives_the_processes_of_the_public_launcher(name: str) -> None:
    case_name, expected = LIKES[name]
    case = load(case_name)
    links = {CACHE: "0123456789abcdef"} if name == HF_CACHE else {}
    known = {rank: attrs.evolve(each, links=links) for rank, each in case.facts().items()}
    if name == EXPERTS:
        known = {
            rank: attrs.evolve(each, nics=[nic(device) for device in case.environ["IBDEVICES"].split(",")])
            for rank, each in known.items()
        }
    assert differing(name, case_name, known) == expected


# --- how a worker is spread --------------------------------------------------------------------------------------


def test_each_gpu_is_a_rank_with_experts_over_all_and_prefill_writes_kv() -> None:
    for process in both(planned(WRITE)):
        assert (value(process, "--tensor-parallel-size"), value(process, "--data-parallel-size")) == ("1", "8")
        assert "--enable-expert-parallel" in process.argv
        config = transfer(process)
        assert (config["kv_connector"], config["read_mode"]) == ("MoRIIOConnector", False)
        assert (config["backend"], config["qp_per_transfer"], config["num_workers"]) == ("rdma", 4, 4)
        assert process.env["MORI_IO_QP_MAX_SEND_WR"] == "32768"
        # One handshake and one notify port for each rank.
        assert {process.port_counts[name] for name in ("handshake", "notify")} == {8}
    key = "argv/--kv-transfer-config/kv_connector_extra_config.read_mode"
    assert f"{WRITE}.yaml:" in source(planned(WRITE), "decode-0", key)
    with pytest.raises(ParityError, match="transfer-mode"):
        planned(WRITE, **{"decode.settings": "read_mode=true"})


def test_rdma_devices_that_are_not_named_are_the_node_s_own() -> None:
    facts = {
        0: NodeFacts(nics=[nic("ionic_0"), nic("ionic_1", state="DOWN")], gpu_vendor="amd"),
        1: NodeFacts(nics=[nic("bnxt_re0"), nic("bnxt_re1")], gpu_vendor="amd"),
    }
    launch = planned(WRITE, facts, nodes="10.0.0.1,10.0.0.2")
    assert launch.warnings == ()
    prefill, decode = both(launch)
    assert (prefill.env["NCCL_IB_HCA"], decode.env["NCCL_IB_HCA"]) == ("ionic_0", "bnxt_re0,bnxt_re1")
    assert (prefill.env["UCX_NET_DEVICES"], decode.env["UCX_NET_DEVICES"]) == ("ionic_0:1", "bnxt_re0:1")


def test_ranks_over_two_nodes_are_served_by_the_head_or_each_node_by_its_own() -> None:
    for name, hybrid in ((HEADLESS, False), (HYBRID, True)):
        launch = planned(name, nodes="n0,n1,n2")
        head, other = launch.process("decode-0"), launch.process("decode-0.1")
        for process, first in ((head, "0"), (other, "8")):
            assert value(process, "--data-parallel-size") == "16"
            assert value(process, "--data-parallel-size-local") == "8"
            assert (value(process, "--data-parallel-address"), value(process, "--data-parallel-rpc-port")) == (
                "n1",
                "29550",
            )
            assert ("--data-parallel-hybrid-lb" in process.argv) == hybrid
            if hybrid or process is other:
                assert value(process, "--data-parallel-start-rank") == first
            else:
                assert "--data-parallel-start-rank" not in process.argv
        assert "--headless" not in head.argv
        assert ("--headless" in other.argv) == ("http" not in other.ports) == (not other.ready) == (not hybrid)
        router = launch.process("router").argv
        served = ["http://n1:2584", *(["http://n2:2584"] if hybrid else [])]
        assert [router[index + 1] for index, word in enumerate(router) if word == "--decode"] == served
    assert f"{HYBRID}.yaml:" in source(planned(HYBRID), "decode-0", "argv/--data-parallel-hybrid-lb")


def test_a_node_without_a_whole_rank_cannot_serve_by_itself() -> None:
    with pytest.raises(TopologyError, match=r"dp_hybrid is set .* share each rank.*--decode-dp-attention"):
        planned(WIDE, settings="dp_hybrid=true")
    # Where a worker has one node there is nothing to choose.
    assert "--data-parallel-hybrid-lb" not in planned(HYBRID).process("prefill-0").argv


def test_a_node_that_serves_its_own_ranks_has_the_head_s_port() -> None:
    busy = {2: NodeFacts(listening_ports=[2584])}
    launch = planned(HYBRID, busy, nodes="n0,n1,n2")
    port = launch.process("decode-0").ports["http"]
    assert port != 2584
    assert value(launch.process("decode-0.1"), "--port") == value(launch.process("decode-0"), "--port") == str(port)
    assert f"http://n2:{port}" in launch.process("router").argv


def test_a_tensor_parallel_group_lies_on_two_nodes() -> None:
    launch = planned(WIDE, nodes="n0,n1,n2")
    head, follower = launch.process("decode-0"), launch.process("decode-0.1")
    for process in (head, follower):
        assert (value(process, "--tensor-parallel-size"), value(process, "--master-addr")) == ("16", "n1")
    assert (value(head, "--node-rank"), value(follower, "--node-rank")) == ("0", "1")
    assert "--headless" in follower.argv
    assert value(launch.process("prefill-0"), "--tensor-parallel-size") == "8"


def test_two_servers_of_a_node_share_nothing() -> None:
    launch = planned(ONE_NODE, nodes="n0")
    prefill, decode = both(launch)
    assert (prefill.env["HIP_VISIBLE_DEVICES"], decode.env["HIP_VISIBLE_DEVICES"]) == ("0,1,2,3", "4,5,6,7")
    taken = [port for process in (prefill, decode, launch.process("router")) for port in planned_ports(process)]
    assert len(taken) == len(set(taken))
    assert prefill.env["VLLM_PORT"] != decode.env["VLLM_PORT"]


def test_speculation_is_one_for_both_roles_on_nodes_of_four_gpus() -> None:
    launch = planned(FOUR_GPUS, nodes="n0,n1")
    for process in both(launch):
        assert json.loads(value(process, "--speculative-config")) == {
            "method": "eagle3",
            "model": "Inferact/MiniMax-M3-EAGLE3",
            "num_speculative_tokens": 3,
        }
        assert process.gpus == (0, 1, 2, 3)
        assert value(process, "--tensor-parallel-size") == "4"
    assert f"{FOUR_GPUS}.yaml:" in source(launch, "prefill-0", "argv/--speculative-config/num_speculative_tokens")
    assert "models.yaml:" in source(launch, "prefill-0", "argv/--speculative-config/method")
    own = planned(FOUR_GPUS, args="""--speculative-config '{"model": "/models/my-draft"}'""")
    config = json.loads(value(own.process("decode-0"), "--speculative-config"))
    assert (config["method"], config["model"]) == ("eagle3", "/models/my-draft")
    with pytest.raises(ParityError, match="speculation"):
        planned(FOUR_GPUS, **{"decode.mtp": "2"})


# --- KV, devices, addresses --------------------------------------------------------------------------------------


def test_an_agentic_load_keeps_the_prefix_cache_behind_a_router_that_knows_beginnings() -> None:
    launch = planned(AGENTIC, nodes="n0,n1,n2,n3")
    for process in both(launch):
        assert transfer(process)["kv_connector"] == "NixlConnector"
        assert "--enable-prefix-caching" in process.argv
        assert "--no-enable-prefix-caching" not in process.argv
        assert "conversations come again" in source(launch, process.name, "argv/--enable-prefix-caching")
    router = launch.process("router")
    for flag, text in (
        ("--kv-connector", "nixl"),
        ("--policy", "consistent_hash"),
        ("--prefill-policy", "cache_aware"),
        ("--decode-policy", "consistent_hash"),
        ("--health-check-interval-secs", "2"),
        ("--retry-max-retries", "3"),
        ("--cb-failure-threshold", "5"),
    ):
        assert value(router, flag) == text
    assert f"{AGENTIC}.yaml:" in source(launch, "router", "argv/--cb-failure-threshold")
    assert (
        planned(AGENTIC, settings="prefix_caching=false").process("decode-0").argv.count("--enable-prefix-caching") == 0
    )


def test_links_of_two_addresses_get_a_route_an_rdma_address_and_all_devices() -> None:
    case = load("vllm/kimi_1p1d_rdma_subnet")
    launch = planned(ROUTE, case.facts(), nodes=case.environ["IPADDRS"])
    assert launch.warnings == ()
    setups = [process for rank in launch.ranks for process in rank.processes() if process.kind == "setup"]
    assert [process.argv[3:6] for process in setups] == [
        ("192.168.1.0/24", "via", "192.168.1.11"),
        ("192.168.2.0/24", "via", "192.168.2.21"),
    ]
    for process, address in zip(both(launch), ("192.168.1.10", "192.168.2.20"), strict=True):
        assert process.env["VLLM_NIXL_SIDE_CHANNEL_HOST"] == address
        assert process.env["NCCL_IB_HCA"] == case.environ["IBDEVICES"]
        assert process.env["UCX_NET_DEVICES"] == "rdma0:1"
    assert not [p for rank in planned(ROUTE).ranks for p in rank.processes() if p.kind == "setup"]


def test_each_node_s_snapshot_is_served_under_the_model_s_name() -> None:
    facts = {rank: NodeFacts(links={CACHE: target}) for rank, target in enumerate(("aaa", "bbb"))}
    launch = planned(HF_CACHE, facts, nodes="n0,n1")
    assert [process.argv[2] for process in both(launch)] == [f"{CACHE}/snapshots/aaa", f"{CACHE}/snapshots/bbb"]
    assert {value(process, "--served-model-name") for process in both(launch)} == {"Kimi-K2.5-MXFP4"}
    assert {process.env["HF_HUB_OFFLINE"] for process in both(launch)} == {"1"}


def test_fixed_ports_reach_every_side_and_one_that_is_taken_is_refused() -> None:
    launch = planned(PORTS, nodes="n0,n1")
    for process in both(launch):
        config = transfer(process)
        assert (value(process, "--port"), config["http_port"]) == ("2600", "2600")
        assert (config["handshake_port"], config["notify_port"], config["proxy_ping_port"]) == ("6400", "6500", "27000")
        assert process.ready[0].timeout_s == 5400
    router = launch.process("router")
    assert value(router, "--vllm-discovery-address") == "0.0.0.0:27000"
    assert (value(router, "--port"), value(router, "--prometheus-port")) == ("31000", "29100")
    with pytest.raises(PortError, match="27000"):
        planned(PORTS, {0: NodeFacts(listening_ports=[27000])}, nodes="n0,n1")


def test_ipv6_addresses_are_in_brackets_where_a_port_follows() -> None:
    launch = planned(IPV6)
    router, decode = launch.process("router"), launch.process("decode-0")
    assert (value(router, "--prefill"), value(router, "--decode")) == (
        "http://[fd00::10]:2584",
        "http://[fd00::11]:2584",
    )
    assert (value(router, "--host"), value(decode, "--host")) == ("::", "::")
    assert decode.env["VLLM_HOST_IP"] == decode.env["VLLM_NIXL_SIDE_CHANNEL_HOST"] == "fd00::11"
    assert decode.env["VLLM_NIXL_SIDE_CHANNEL_PORT"] == "5700"
    assert decode.ready[0].target == "http://[fd00::11]:2584/health"
