"""The run files of SGLang in ``examples/``: they plan without a remark, and as the public launchers ran their likes."""

from __future__ import annotations

import attrs
import pytest

from disagg_run import LaunchPlan, Nic, NodeFacts, ParityError, PlannedProcess, PortError
from disagg_run.running.teardown import planned_ports
from tests.example_plans import EXAMPLES, differing, planned
from tests.parity.case import load
from tests.plan_values import source
from tests.sglang_plans import value, values

CACHE = "/models/models--amd--DeepSeek-R1-0528-MXFP4-v2"
_R1 = "dsr1-fp8-mi355x-sglang-disagg"
DP, DECODE_EP, MIXED, ROUTER, PORTS = (f"{_R1}-{name}" for name in ("dp", "decode-ep", "tp4-tp8", "router", "ports"))
STORE, AGENTIC = f"{_R1}-hicache-store", "dsv4-fp4-mi355x-sglang-disagg-agentic"
HF_CACHE, ONE_NODE = "dsr1-fp4-mi355x-sglang-disagg-hf-cache", "dsr1-fp4-sglang-disagg-one-node"
FOUR_GPUS, IPV6 = "dsr1-fp8-sglang-disagg-tp4-nodes-mtp", "dsr1-fp8-sglang-disagg-ipv6"
OVERRIDES = "glm5-fp8-sglang-disagg-overrides"

_CACHED = {"flag --model-path", "flag --served-model-name", "env HF_HUB_OFFLINE"}
#: Run file -> the public case that it is, and what is another's on purpose, by process.
LIKES: dict[str, tuple[str, dict[str, set[str]]]] = {
    _R1: ("sglang/dsr1_fp8_1p2d_tp8", {}),
    f"{_R1}-dep-mtp": ("sglang/dsr1_fp8_2p1d_dep8_mtp1", {}),
    f"{_R1}-wide-decode": ("sglang/dsr1_fp8_1k1k_1p_tp8_1d_dep16_2nodes", {}),
    f"{_R1}-mooncake": ("sglang/r1_kv_p2p_mooncake", {}),
    f"{_R1}-hicache": ("sglang/r1_hicache_dram_budget", {}),
    STORE: (
        # The master's default port lies in the range from which the kernel takes ports for connections.
        "sglang/r1_hicache_mooncake_defaults",
        {
            "prefill-0": {"flag --hicache-storage-backend-extra-config master_server_address"},
            "mooncake-master": {"flag --rpc_port"},
        },
    ),
    f"{_R1}-eval": ("sglang/r1_dep8_eval_only", {}),
    AGENTIC: ("sglang/dsv4_agentx_hicache_tp8_mtp3", {}),
    DP: ("sglang/r1_1p1d_dp_only_both", {}),
    DECODE_EP: ("sglang/r1_1p1d_decode_ep_only", {}),
    MIXED: ("sglang/dsr1_fp8_1p1d_tp4_tp8", {}),
    ROUTER: ("sglang/r1_metrics_router_overrides", {}),
    HF_CACHE: ("sglang/dsr1_fp4_1p1d_dep8", {"prefill-0": _CACHED, "decode-0": _CACHED}),
}
#: Run files that no public case is like: what they are for is tested below.
OWN = {PORTS, ONE_NODE, FOUR_GPUS, IPV6, OVERRIDES}


def both(launch: LaunchPlan) -> tuple[PlannedProcess, PlannedProcess]:
    """The first prefill and the first decode server."""
    return launch.process("prefill-0"), launch.process("decode-0")


def nics(*names: str) -> NodeFacts:
    """Facts of a node with these RDMA devices, all up."""
    return NodeFacts(gpu_vendor="amd", nics=[Nic(name=name, state="ACTIVE") for name in names])


def test_every_run_file_is_compared_or_has_a_test_of_its_own() -> None:
    assert {path.stem for path in EXAMPLES.glob("*sglang*.yaml")} == {*LIKES, *OWN}


@pytest.mark.parametrize("name", LIKES)
def test_a_run_file_gives_the_processes_of_the_public_launcher(name: str) -> None:
    case_name, expected = LIKES[name]
    case = load(case_name)
    devices = [Nic(name=each, state="ACTIVE") for each in case.environ["IBDEVICES"].split(",")]
    links = {CACHE: "0123456789abcdef"} if name == HF_CACHE else {}
    # Run files that name no devices get them from the nodes.
    known = {rank: attrs.evolve(each, nics=devices, links=links) for rank, each in case.facts().items()}
    assert differing(name, case_name, known) == expected


# --- how a worker is spread --------------------------------------------------------------------------------------


def test_attention_or_experts_are_spread_each_by_itself() -> None:
    for process in both(planned(DP)):
        assert value(process, "--attn-dp-size") == "8"
        assert "--ep-size" not in process.argv
    prefill, decode = both(planned(DECODE_EP))
    assert value(decode, "--ep-size") == "8"
    assert "--ep-size" not in prefill.argv
    assert "--attn-dp-size" not in (*prefill.argv, *decode.argv)


def test_rdma_devices_that_are_not_named_are_the_node_s_own() -> None:
    launch = planned(DP, {0: nics("ionic_0", "ionic_1"), 1: nics("bnxt_re0")}, nodes="10.0.0.1,10.0.0.2")
    assert launch.warnings == ()
    prefill, decode = both(launch)
    assert value(prefill, "--disaggregation-ib-device") == prefill.env["NCCL_IB_HCA"] == "ionic_0,ionic_1"
    assert value(decode, "--disaggregation-ib-device") == decode.env["NCCL_IB_HCA"] == "bnxt_re0"


def test_only_a_model_that_is_known_for_it_differs_in_tp() -> None:
    prefill, decode = both(planned(MIXED))
    assert (value(prefill, "--tp-size"), value(decode, "--tp-size")) == ("4", "8")
    with pytest.raises(ParityError, match="attention-tp"):
        planned(MIXED, model="GLM-5-FP8")


def test_nodes_of_four_gpus_carry_a_decode_worker_of_eight_with_drafts_on_both_roles() -> None:
    launch = planned(FOUR_GPUS, nodes="n0,n1,n2")
    head, follower = launch.process("decode-0"), launch.process("decode-0.1")
    for rank, process in enumerate((head, follower)):
        assert (value(process, "--tp-size"), value(process, "--nnodes"), value(process, "--node-rank")) == (
            "8",
            "2",
            str(rank),
        )
        assert value(process, "--dist-init-addr") == "n1:20000"
    for process in (launch.process("prefill-0"), head, follower):
        assert process.gpus == (0, 1, 2, 3)
        assert value(process, "--speculative-num-steps") == "1"
    assert f"{FOUR_GPUS}.yaml:" in source(launch, "decode-0", "argv/--speculative-num-steps")


def test_two_servers_of_a_node_share_nothing() -> None:
    launch = planned(ONE_NODE, nodes="n0")
    prefill, decode = both(launch)
    assert (prefill.env["HIP_VISIBLE_DEVICES"], decode.env["HIP_VISIBLE_DEVICES"]) == ("0,1,2,3", "4,5,6,7")
    assert not [name for process in (prefill, decode) for name in process.env if name == "CUDA_VISIBLE_DEVICES"]
    taken = [port for process in (prefill, decode, launch.process("router")) for port in planned_ports(process)]
    assert len(taken) == len(set(taken))
    for process in (prefill, decode):
        http = process.ports["http"]
        assert (process.ports["dp"], process.ports["dp_broadcast"]) == (http + 233, http + 13)


# --- router, ports, addresses ------------------------------------------------------------------------------------


def test_flags_of_the_router_as_texts_replace_those_of_the_plan() -> None:
    launch = planned(ROUTER)
    router = launch.process("router")
    assert value(router, "--policy") == "round_robin"
    assert value(router, "--cb-timeout-duration-secs") == "5"
    assert not {"--prefill-policy", "--decode-policy", "--retry-max-retries"} & {*router.argv}
    for process in both(launch):
        assert "--enable-metrics" in process.argv
        assert process.ready[0].timeout_s == 900
    assert [proof.timeout_s for proof in router.ready] == [900, 1020]
    assert f"{ROUTER}.yaml:" in source(launch, "router", "argv/--policy")


def test_fixed_ports_reach_every_side_and_one_that_is_taken_is_refused() -> None:
    launch = planned(PORTS, nodes="n0,n1,n2")
    prefill, head, follower = (launch.process(name) for name in ("prefill-0", "decode-0", "decode-0.1"))
    for process in (prefill, head, follower):
        assert (value(process, "--port"), value(process, "--disaggregation-bootstrap-port")) == ("8100", "8900")
        assert value(process, "--disaggregation-ib-device") == ",".join(f"rdma{number}" for number in range(8))
        assert process.env["MORI_RDMA_TC"] == "104"
    assert value(head, "--dist-init-addr") == value(follower, "--dist-init-addr") == "n1:21000"
    assert (head.port_counts["dist_init"], head.ports["dp_broadcast"]) == (7, 21013)
    router = launch.process("router")
    assert (value(router, "--port"), value(router, "--prometheus-port")) == ("31000", "29100")
    assert values(router, "--prefill") == ["http://n0:8100", "8900"]
    with pytest.raises(PortError, match="21013"):
        planned(PORTS, {1: NodeFacts(listening_ports=[21013])}, nodes="n0,n1,n2")


def test_each_node_s_snapshot_is_served_under_one_name() -> None:
    facts = {rank: NodeFacts(links={CACHE: target}) for rank, target in enumerate(("aaa", "bbb"))}
    launch = planned(HF_CACHE, facts, nodes="n0,n1", waive="ib-devices")
    paths = [value(process, "--model-path") for process in both(launch)]
    assert paths == [f"{CACHE}/snapshots/aaa", f"{CACHE}/snapshots/bbb"]
    assert {value(process, "--served-model-name") for process in both(launch)} == {"deepseek-r1"}
    assert {process.env["HF_HUB_OFFLINE"] for process in both(launch)} == {"1"}


def test_ipv6_addresses_are_in_brackets_where_a_port_follows() -> None:
    launch = planned(IPV6)
    router, follower = launch.process("router"), launch.process("decode-0.1")
    assert values(router, "--prefill")[0] == "http://[fd00::10]:8000"
    assert (value(router, "--decode"), value(router, "--host")) == ("http://[fd00::11]:8000", "[::]")
    assert (value(follower, "--host"), value(follower, "--dist-init-addr")) == ("::", "[fd00::11]:20000")
    assert follower.env["SGLANG_HOST_IP"] == "fd00::12"
    assert launch.process("prefill-0").ready[0].target == "http://[fd00::10]:8000/health"


# --- overrides ---------------------------------------------------------------------------------------------------


def test_the_narrower_override_wins_and_says_where_it_stands() -> None:
    launch = planned(OVERRIDES)
    servers = [launch.process(name) for name in ("prefill-0", "decode-0", "decode-1")]
    assert [process.env["NCCL_DEBUG"] for process in servers] == ["WARN", "WARN", "INFO"]
    assert [process.env["SGLANG_LOG_MS"] for process in servers] == ["true", "false", "false"]
    for flag, texts in (
        ("--context-length", ["65536"] * 3),
        ("--log-level", ["info", "info", "debug"]),
        ("--max-running-requests", ["128", "256", "256"]),
    ):
        assert [value(process, flag) for process in servers] == texts
    assert value(servers[0], "--chunked-prefill-size") == "65536"
    router = launch.process("router")
    assert (value(router, "--max-concurrent-requests"), router.env["RUST_BACKTRACE"]) == ("4096", "1")
    for process, key in (
        ("prefill-0", "argv/--chunked-prefill-size"),
        ("decode-0", "env/SGLANG_LOG_MS"),
        ("decode-1", "argv/--log-level"),
        ("decode-1", "env/NCCL_DEBUG"),
        ("router", "argv/--max-concurrent-requests"),
    ):
        assert f"{OVERRIDES}.yaml:" in source(launch, process, key)
