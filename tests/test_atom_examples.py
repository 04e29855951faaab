"""The run files of ATOM in ``examples/``: they plan without a remark, and as the public launchers ran their likes."""

from __future__ import annotations

import json
from collections.abc import Iterable

import attrs
import pytest

from disagg_run import FlagError, Nic, NodeFacts, ParityError
from disagg_run.running.teardown import planned_ports
from tests.example_plans import EXAMPLES, differing, planned
from tests.parity.case import load
from tests.plan_values import source, value

CACHE = "/models/models--amd--Kimi-K2.5-MXFP4"
OVERRIDES, ROUTER = "dsv4-fp4-mi355x-atom-overrides", "kimi-fp4-mi355x-atom-router"
HF_CACHE, ONE_NODE, IPV6 = "kimi-fp4-mi355x-atom-hf-cache", "kimi-fp4-atom-one-node", "kimi-fp4-atom-ipv6"
FOUR_GPUS = "minimax-m3-fp4-mi355x-atom-tp4-mtp"

#: Run file -> the public case that it is, and what is another's on purpose, by process.
LIKES: dict[str, tuple[str, dict[str, set[str]]]] = {
    "dsv4-fp4-mi355x-atom-disagg": ("atom/dsv4_2p1d_dpa_tp8", {}),
    "dsv4-fp4-mi355x-atom-dep": ("atom/dsv4_1p1d_ep_dpa", {}),
    "dsv4-fp4-mi355x-atom-mtp": ("atom/dsv4_1p1d_tp8_mtp2", {}),
    FOUR_GPUS: ("atom/m3_fp4_1p1d_tp4_mtp3", {}),
    "kimi-fp4-mi355x-atom-disagg": ("atom/kimi_1p2d_tp4_tp8", {}),
    OVERRIDES: ("atom/dsv4_1p1d_overrides", {"decode-0": {"env ATOM_LOG_LEVEL"}}),
    HF_CACHE: (
        "atom/model_kimi-k2.5-mxfp4_1p1d_tp8",
        {
            name: {"flag --model", "flag --served-model-name", "flag --kv-transfer-config ib_device", *more}
            for name, more in (("prefill-0", ()), ("decode-0", ("flag --max-num-seqs",)))
        },
    ),
}
#: Run files that no public case is like: what they are for is tested below.
OWN = {ROUTER, ONE_NODE, IPV6}


def facts(*, links: Iterable[str] = (), gpus: int | None = None, **more: object) -> dict[int, NodeFacts]:
    """Facts of two nodes."""
    found = NodeFacts(gpu_vendor="amd", gpus=gpus, links=dict.fromkeys(links, "0123456789abcdef"), **more)  # type: ignore[arg-type]
    return {0: found, 1: found}


def test_every_run_file_is_compared_or_has_a_test_of_its_own() -> None:
    assert {path.stem for path in EXAMPLES.glob("*atom*.yaml")} == {*LIKES, *OWN}


@pytest.mark.parametrize("name", LIKES)
def test_a_run_file_gives_the_processes_of_the_public_launcher(name: str) -> None:
    case_name, expected = LIKES[name]
    links = {CACHE: "0123456789abcdef"} if name == HF_CACHE else {}
    gpus = 4 if name == FOUR_GPUS else 8
    known = {rank: attrs.evolve(each, links=links, gpus=gpus) for rank, each in load(case_name).facts().items()}
    assert differing(name, case_name, known) == expected


def test_speculation_is_one_for_both_roles() -> None:
    for name, method, tokens in (("dsv4-fp4-mi355x-atom-mtp", "mtp", "2"), (FOUR_GPUS, "eagle3", "3")):
        launch = planned(name)
        for process in ("prefill-0", "decode-0"):
            argv = launch.process(process)
            assert (value(argv, "--method"), value(argv, "--num-speculative-tokens")) == (method, tokens)
            assert f"{name}.yaml:" in source(launch, process, "argv/--num-speculative-tokens")
    with pytest.raises(ParityError, match=r"speculation-tokens is '2' .* but '4'"):
        planned("dsv4-fp4-mi355x-atom-mtp", **{"decode.mtp": "4"})


def test_dense_layers_are_quantised_while_they_load_unless_attention_is_data_parallel() -> None:
    launch = planned(FOUR_GPUS)
    assert launch.process("prefill-0").gpus == (0, 1, 2, 3)
    for process in ("prefill-0", "decode-0"):
        config = json.loads(value(launch.process(process), "--online_quant_config"))
        assert config["global_quant_config"] == "ptpc_fp8"
        assert "models.yaml:" in source(launch, process, "argv/--online_quant_config/global_quant_config")
    other = planned(FOUR_GPUS, dp_attention=True)
    assert "--online_quant_config" not in other.process("decode-0").argv


def test_the_narrower_override_wins_and_says_where_it_stands() -> None:
    launch = planned(OVERRIDES)
    prefill, decode = launch.process("prefill-0"), launch.process("decode-0")
    for process in (prefill, decode):
        assert (value(process, "--block-size"), value(process, "--max-model-len")) == ("64", "65536")
        assert "--enforce-eager" in process.argv
    assert (prefill.env["ATOM_LOG_LEVEL"], decode.env["ATOM_LOG_LEVEL"]) == ("WARNING", "DEBUG")
    assert (value(prefill, "--max-num-seqs"), value(decode, "--max-num-seqs")) == ("128", "64")
    for key, name in (
        ("argv/--block-size", "settings.block_size"),
        ("argv/--enforce-eager", "args"),
        ("env/ATOM_LOG_LEVEL", "env.ATOM_LOG_LEVEL"),
    ):
        assert f"{OVERRIDES}.yaml:" in source(launch, "decode-0", key), name
    with pytest.raises(FlagError, match="--seed"):
        planned(OVERRIDES, args="--seed 7")


def test_two_servers_of_a_node_share_nothing() -> None:
    launch = planned(ONE_NODE, nodes="n0")
    prefill, decode = launch.process("prefill-0"), launch.process("decode-0")
    assert (prefill.env["HIP_VISIBLE_DEVICES"], decode.env["HIP_VISIBLE_DEVICES"]) == ("0,1,2,3", "4,5,6,7")
    taken = [port for process in (prefill, decode, launch.process("router")) for port in planned_ports(process)]
    assert len(taken) == len(set(taken))
    assert prefill.env["ATOM_DP_BASE_PORT"] != decode.env["ATOM_DP_BASE_PORT"]


def test_the_router_has_the_policies_limits_and_ports_of_the_file() -> None:
    launch = planned(ROUTER, nodes="n0,n1,n2,n3")
    router = launch.process("router")
    for flag, text in (
        ("--policy", "random"),
        ("--prefill-policy", "cache_aware"),
        ("--decode-policy", "power_of_two"),
        ("--retry-max-retries", "2"),
        ("--cache-threshold", "0.5"),
        ("--port", "31000"),
        ("--prometheus-port", "29200"),
    ):
        assert value(router, flag) == text
        assert f"{ROUTER}.yaml:" in source(launch, "router", f"argv/{flag}")
    assert [router.argv[index + 1] for index, word in enumerate(router.argv) if word in ("--prefill", "--decode")] == [
        "http://n0:8110",
        "http://n1:8110",
        "http://n2:8120",
        "http://n3:8120",
    ]
    assert json.loads(value(launch.process("prefill-1"), "--kv-transfer-config"))["handshake_port"] == 6400
    assert {proof.timeout_s for proof in router.ready} == {600}
    assert launch.process("decode-0").ready[0].timeout_s == 3600


def test_kv_goes_by_the_named_device_of_the_cache_s_snapshot_under_one_name() -> None:
    nics = [
        Nic(
            name=name,
            state="ACTIVE",
            driver="ionic",
            netdev=f"net_{name}",
            addresses=(address,),
            gids={0: "fe80::1", 1: "fd00::1"},
        )
        for name, address in (("rdma0", "192.168.1.10"), ("rdma1", "192.168.2.10"))
    ]
    launch = planned(HF_CACHE, facts(links=[CACHE], nics=nics), nodes="10.0.0.1,10.0.0.2")
    assert launch.warnings == ()
    for process in (launch.process("prefill-0"), launch.process("decode-0")):
        assert value(process, "--model") == f"{CACHE}/snapshots/0123456789abcdef"
        assert value(process, "--served-model-name") == "kimi"
        assert json.loads(value(process, "--kv-transfer-config"))["ib_device"] == "rdma0"
        assert process.env["ATOM_HOST_IP"] == "192.168.1.10"
        assert process.ready[0].identity["served_model"] == "kimi"
        assert process.env["MC_GID_INDEX"] == "1"


def test_ipv6_addresses_are_in_brackets_where_a_port_follows() -> None:
    launch = planned(IPV6)
    router, decode = launch.process("router"), launch.process("decode-0")
    assert (value(router, "--prefill"), value(router, "--decode")) == (
        "http://[fd00::10]:8010",
        "http://[fd00::11]:8020",
    )
    assert (value(router, "--host"), value(decode, "--host")) == ("[::]", "::")
    assert decode.env["ATOM_HOST_IP"] == "fd00::11"
    assert decode.ready[0].target == "http://[fd00::11]:8020/health"
    assert (
        planned(IPV6, nodes="n0=2001:db8::10,n1=2001:db8::11").process("decode-0").env["ATOM_HOST_IP"] == "2001:db8::11"
    )
