"""The vLLM plugin: what its servers and router are given, and why; faults of the public launchers by number."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import pytest
from packaging.specifiers import SpecifierSet

from disagg_run import (
    ArgText,
    FlagError,
    LaunchSpec,
    Layer,
    NodeFacts,
    ParityError,
    PortError,
    RoleSpec,
    SpecError,
    plan,
)
from disagg_run.simulation.offline import OFFLINE
from disagg_run.spec.reading import read_spec
from disagg_run.testing import check_engine
from disagg_vllm import models, versions
from tests.parity.case import load
from tests.parity.comparing import compare
from tests.vllm_plans import HOST, KIMI, contract, nic, planned, source, transfer, value, warnings

ROOT = Path(__file__).parents[1]
MODELS = [row.name for row in models.read_models()]

# --- the contract ------------------------------------------------------------------------------------------------


def test_the_engine_keeps_the_contract() -> None:
    check_engine("vllm-disagg")


@pytest.mark.parametrize("connector", ["vllm-moriio", "vllm-nixl"])
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(("prefill", "decode"), [(1, 1), (2, 1), (1, 2)])
@pytest.mark.parametrize("mode", [{}, {"dp_attention": True, "expert_parallel": True}, {"expert_parallel": True}])
def test_every_model_is_planned_without_a_remark(
    model: str, prefill: int, decode: int, mode: dict[str, Any], connector: str
) -> None:
    sides: dict[str, Any] = {"prefill": RoleSpec(workers=prefill, **mode), "decode": RoleSpec(workers=decode, **mode)}
    launch = planned(model, nodes=prefill + decode, connector=connector, settings={}, **sides)
    assert warnings(launch) == []


def test_a_discovery_port_outside_the_ephemeral_range_leaves_no_warning_at_all() -> None:
    assert planned(settings={"discovery_port": 26367}).warnings == ()


def test_the_example_run_file_gives_the_same_commands_as_the_job_script() -> None:
    recipe = ROOT / "examples" / "kimi-fp4-mi355x-vllm-disagg.yaml"
    asked = read_spec(options={"nodes": "10.0.0.1,10.0.0.2,10.0.0.3"}, recipe=recipe, environ={}, host=HOST)
    case = load("vllm/kimi_1k1k_1p2d_tp8_decode_ep8")
    differing = {each.item for each in compare(case, plan(asked, case.facts(), host=HOST))}
    # The run file moves the discovery port out of the ephemeral range; TQDM and the like are the job script's own.
    assert differing <= {
        "env VLLM_HOST_IP",
        "env MORI_RDMA_TC",
        "flag --kv-transfer-config kv_connector_extra_config.proxy_ping_port",
        "flag --vllm-discovery-address",
    }


# --- who set what ------------------------------------------------------------------------------------------------


def test_each_value_names_its_source() -> None:
    launch = contract()
    assert source(launch, "decode-0", "argv/--tensor-parallel-size") == "environment contract DECODE_TP_SIZE"
    assert source(launch, "decode-0", "argv/--served-model-name") == "environment contract MODEL_NAME"
    assert source(launch, "decode-0", "argv/--kv-transfer-config/kv_role") == "connector (plugin vllm-moriio)"
    assert source(launch, "decode-0", "env/UCX_TLS") == "connector (plugin vllm-moriio)"
    assert source(launch, "decode-0", "env/VLLM_USE_V1") == "engine default (plugin vllm-disagg)"
    table = (ROOT / "plugins/vllm/disagg_vllm/models.yaml").read_text().splitlines()
    for key, text in (
        ("argv/--all2all-backend", "mori_low_latency"),
        ("argv/--mm-encoder-tp-mode", "mm-encoder-tp-mode"),
        ("env/VLLM_ENGINE_READY_TIMEOUT_S", "VLLM_ENGINE_READY_TIMEOUT_S"),
    ):
        said = source(launch, "decode-0", key)
        assert said.startswith("model table models.yaml:")
        assert text in table[int(said.split("models.yaml:")[1].split()[0]) - 1]


def test_explicit_values_beat_the_table_and_show_what_they_replaced() -> None:
    launch = planned(settings={"block_size": 16, "max_model_len": "64K", "prefix_caching": True})
    decode = launch.process("decode-0")
    assert (value(decode, "--block-size"), value(decode, "--max-model-len")) == ("16", "64K")
    assert "--enable-prefix-caching" in decode.argv
    assert "--no-enable-prefix-caching" not in decode.argv
    assert launch.sources is not None
    (new, _), (old, text) = launch.sources.values["/ranks/1/groups/0/processes/0/argv/--block-size"]
    assert (new.layer, old.layer, text) == (Layer.COMMAND_LINE, Layer.MODEL, "1")


def test_a_role_has_what_its_own_part_of_the_row_says() -> None:
    launch = planned()
    assert "--all2all-backend" not in launch.process("prefill-0").argv
    assert value(launch.process("decode-0"), "--all2all-backend") == "mori_low_latency"
    launch = planned("MiniMax-M3-MXFP4")
    assert launch.process("prefill-0").env["VLLM_ROCM_QUICK_REDUCE_MAX_SIZE_BYTES_MB"] == "2048"
    assert "VLLM_ROCM_QUICK_REDUCE_MAX_SIZE_BYTES_MB" not in launch.process("decode-0").env
    assert "--language-model-only" in launch.process("decode-0").argv


# --- models ------------------------------------------------------------------------------------------------------


def test_r15_an_unknown_model_is_refused_with_the_nearest_and_can_be_let_through() -> None:
    with pytest.raises(SpecError, match=r"no model 'MiniMax-M2\.6'.*did you mean 'MiniMax-M2\.5'\?.*unknown-model"):
        planned("MiniMax-M2.6")
    launch = planned("tiny-random", waive=["unknown-model"])
    assert launch.process("prefill-0").argv[:3] == ("vllm", "serve", "/models/tiny-random")
    assert "--block-size" not in launch.process("prefill-0").argv


def test_the_model_id_is_its_name_and_not_its_place() -> None:
    launch = contract(MODEL_PATH="/hub/models--amd--Kimi-K2.5-MXFP4/snapshots/0123")
    assert launch.model.served_name == KIMI
    assert value(launch.process("decode-0"), "--served-model-name") == KIMI
    assert launch.process("decode-0").ready[0].identity["served_model"] == KIMI
    assert planned(served_model_name="kimi").process("router").ready[0].identity == {"listener": "http"}
    assert planned(served_model_name="kimi").model.served_name == "kimi"


CACHE = "/models/models--amd--Kimi-K2.5-MXFP4"


@pytest.mark.parametrize("target", ["b2", f"{CACHE}/snapshots/b2"])
@pytest.mark.parametrize("path", [CACHE, f"{CACHE}/", None])
def test_r28_the_snapshot_of_a_cache_is_the_one_that_refs_main_names(path: str | None, target: str) -> None:
    facts = {rank: NodeFacts(links={CACHE: target, "/models/models--x--Other": "a1"}) for rank in (0, 1)}
    launch = planned(facts=facts, model_path=path, image="vllm:x", ib_devices=["rdma0"])
    for name in ("prefill-0", "decode-0"):
        assert launch.process(name).argv[2] == f"{CACHE}/snapshots/b2"
    group = launch.ranks[0].groups[0]
    assert f"{CACHE}/snapshots/b2" in {check.target for check in group.preflight}
    assert group.container is not None
    assert group.container.needs.mounts[0].source == CACHE


@pytest.mark.parametrize(
    "links", [{}, {"/models/models--x--Other": "a1"}, {f"/models/models--{org}--{KIMI}": "a1" for org in "xy"}]
)
def test_a_model_that_no_cache_or_two_caches_hold_stays_where_it_was_asked_for(links: Mapping[str, str]) -> None:
    launch = planned(facts={0: NodeFacts(links=links)}, ib_devices=["rdma0"])
    assert launch.process("prefill-0").argv[2] == f"/models/{KIMI}"


@pytest.mark.parametrize(
    ("version", "name"), [("0.32.0", "mori_low_latency"), ("0.23.0", "mori_low_latency"), ("0.22.1", "mori")]
)
def test_the_backend_of_experts_is_spelt_as_the_release_does(version: str, name: str) -> None:
    assert value(planned(engine_version=version).process("decode-0"), "--all2all-backend") == name
    asked = planned(engine_version=version, settings={"all2all_backend": "naive"})
    assert value(asked.process("prefill-0"), "--all2all-backend") == "naive"
    assert "--all2all-backend" not in planned("MiniMax-M2.5", engine_version="0.14.1").process("decode-0").argv


@pytest.mark.parametrize("connector", ["vllm-moriio", "vllm-nixl"])
@pytest.mark.parametrize(
    "version", ["0.14.1", "0.16.0", "0.19.1", "0.20.2", "0.22.1", "0.23.0", "0.26.0", "0.28.0", "0.30.0", "0.32.0"]
)
def test_nothing_is_unknown_to_the_parser_of_a_release_or_the_nearest_one(version: str, connector: str) -> None:
    found = 0
    for row in models.read_models():
        if SpecifierSet(row.versions).contains(version):
            launch = planned(row.name, engine_version=version, connector=connector)
            others = ("registers with the router", "not tested together")
            assert [text for text in warnings(launch) if not any(other in text for other in others)] == []
            found += 1
    assert found >= 3


def test_a_release_without_the_model_is_refused() -> None:
    with pytest.raises(SpecError, match=r"'MiniMax-M3-MXFP4' for versions >=0\.24, not for 0\.23\.0"):
        planned("MiniMax-M3-MXFP4", engine_version="0.23.0")


@pytest.mark.parametrize(
    ("image", "version"), [("vllm/vllm-openai-rocm:v0.28.0", "0.28.0"), ("rocm/vllm:nightly", versions.NEWEST)]
)
def test_the_version_is_that_of_the_image_s_tag_where_it_tells_one(image: str, version: str) -> None:
    assert planned(image=image, ib_devices=["rdma0"]).engine_version == version


# --- sizes -------------------------------------------------------------------------------------------------------


def test_r4_data_parallel_attention_is_one_rank_a_gpu_with_flags_that_vllm_has() -> None:
    launch = contract(PREFILL_ENABLE_DP="true", DECODE_ENABLE_DP="true", DECODE_ENABLE_EP="true")
    for name in ("prefill-0", "decode-0"):
        process = launch.process(name)
        assert "--enable-dp-attention" not in process.argv
        assert (value(process, "--tensor-parallel-size"), value(process, "--data-parallel-size")) == ("1", "8")
        assert "--data-parallel-address" not in process.argv
    assert "--enable-expert-parallel" in launch.process("decode-0").argv
    assert "--enable-expert-parallel" not in launch.process("prefill-0").argv
    assert source(launch, "decode-0", "argv/--data-parallel-size").startswith("environment contract DECODE_ENABLE_DP:")
    with pytest.raises(FlagError, match=r"'--enable-dp-attention'.*--data-parallel-size"):
        contract(EXTRA_SERVER_ARGS="--enable-dp-attention")


def test_a_tensor_parallel_group_over_two_nodes_has_a_head_and_a_headless_follower() -> None:
    launch = planned(nodes=3, connector="vllm-nixl", decode=RoleSpec(tp=16))
    head, follower = launch.process("decode-0"), launch.process("decode-0.1")
    for rank, process in enumerate((head, follower)):
        assert value(process, "--tensor-parallel-size") == "16"
        assert (value(process, "--nnodes"), value(process, "--node-rank")) == ("2", str(rank))
        assert (value(process, "--master-addr"), value(process, "--master-port")) == ("10.0.0.2", "29501")
        assert "--data-parallel-address" not in process.argv
    assert "--headless" in follower.argv
    assert "--port" not in follower.argv
    assert not follower.ready
    assert "--headless" not in head.argv
    assert [(edge.process, edge.until) for edge in follower.after] == [("decode-0", "started")]
    assert (head.ports["http"], head.ports["master"]) == (2584, 29501)
    assert "http" not in follower.ports
    assert launch.process("router").argv.count("--decode") == 1


def test_data_parallel_ranks_over_two_nodes_are_served_by_the_head_alone() -> None:
    side = RoleSpec(tp=16, dp_attention=True, expert_parallel=True)
    launch = planned(nodes=4, connector="vllm-nixl", prefill=side, decode=side)
    for name, first in (("decode-0", None), ("decode-0.1", "8")):
        process = launch.process(name)
        assert value(process, "--data-parallel-size") == "16"
        assert value(process, "--data-parallel-size-local") == "8"
        assert value(process, "--data-parallel-address") == "10.0.0.3"
        assert value(process, "--data-parallel-rpc-port") == "29550"
        assert "--nnodes" not in process.argv
        # A start rank without --headless would make the node a second HTTP server.
        assert ("--headless" in process.argv) == ("--data-parallel-start-rank" in process.argv) == (first is not None)
        if first:
            assert value(process, "--data-parallel-start-rank") == first
    assert launch.process("decode-0").ports["dp_rpc"] == 29550


def test_ranks_that_span_nodes_and_are_several_get_both_meeting_places() -> None:
    launch = planned(nodes=5, connector="vllm-nixl", prefill=RoleSpec(tp=16, dp=2), decode=RoleSpec(tp=8))
    for rank in range(4):
        process = launch.process("prefill-0" if not rank else f"prefill-0.{rank}")
        assert (value(process, "--nnodes"), value(process, "--node-rank")) == ("4", str(rank))
        assert value(process, "--data-parallel-size") == "2"
        assert value(process, "--data-parallel-rpc-port") == "29550"
        assert "--data-parallel-size-local" not in process.argv
        assert ("--headless" in process.argv) == (rank > 0)


def test_pipeline_stages_are_counted_with_the_gpus() -> None:
    process = planned(prefill=RoleSpec(tp=4, pp=2), decode=RoleSpec(tp=4, pp=2)).process("prefill-0")
    assert (value(process, "--tensor-parallel-size"), value(process, "--pipeline-parallel-size")) == ("4", "2")
    assert process.gpus == tuple(range(8))


def test_multi_token_prediction_is_refused_where_no_method_is_known() -> None:
    with pytest.raises(SpecError, match=r"no way of speculation is known for 'Kimi-K2\.5-MXFP4'.*speculative-config"):
        planned(decode=RoleSpec(mtp=1))
    words = ("--speculative-config", '{"method": "mtp", "num_speculative_tokens": 1}')
    launch = planned(args=[ArgText(words=words)])
    assert json.loads(value(launch.process("prefill-0"), "--speculative-config"))["method"] == "mtp"
    with pytest.raises(ParityError, match="speculation"):
        planned(decode=RoleSpec(args=[ArgText(words=words)]))


# --- what both sides share ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"block_size": 32}, "block-size"),
        ({"kv_cache_dtype": "auto"}, "kv-cache-dtype"),
        ({"max_model_len": "9216"}, "max-model-len"),
    ],
)
def test_b29_a_value_for_one_side_only_is_refused_by_name(settings: dict[str, Any], name: str) -> None:
    with pytest.raises(ParityError, match=f"{name} is .* for prefill-0 .*--waive {name}"):
        planned(prefill=RoleSpec(settings=settings))
    assert planned(prefill=RoleSpec(settings=settings), waive=[name]).waived


def test_b62_a_switch_of_the_kv_layout_on_one_side_is_refused() -> None:
    for words, name in (
        (("--disable-hybrid-kv-cache-manager",), "hybrid-kv-cache-manager"),
        (("--attention-backend", "ROCM_AITER_FA"), "attention-backend"),
    ):
        with pytest.raises(ParityError, match=name):
            planned(decode=RoleSpec(args=[ArgText(words=words)]))


def test_b38_a_flag_that_is_gone_or_misspelt_is_refused_with_what_to_write() -> None:
    with pytest.raises(FlagError, match=r"'--disable-log-requests' .* is gone since .*--no-enable-log-requests"):
        contract(EXTRA_SERVER_ARGS="--disable-log-requests")
    with pytest.raises(FlagError, match=r"no flag '--max-num-batched-token'.*--max-num-batched-tokens"):
        contract(EXTRA_SERVER_ARGS="--max-num-batched-token 3")
    with pytest.raises(FlagError, match=r"--kv-cache-dtype .* does not take 'fp9'"):
        contract(EXTRA_SERVER_ARGS="--kv-cache-dtype fp9")


def test_b67_router_flags_are_checked_against_the_router_s_own_parser() -> None:
    router = attrs.evolve(LaunchSpec(engine="", model="").router, args=[ArgText(words=("--cache-treshold", "0.3"))])
    with pytest.raises(FlagError, match=r"no flag '--cache-treshold'.*did you mean '--cache-threshold'"):
        planned(router=router)
    other = attrs.evolve(router, args=[], policy="cache_awar")
    with pytest.raises(FlagError, match=r"--policy .* does not take 'cache_awar': did you mean 'cache_aware'"):
        planned(router=other)


# --- the router --------------------------------------------------------------------------------------------------


def test_r18_the_router_is_always_told_the_port_that_its_probes_ask() -> None:
    for launch, port in ((contract(), "30000"), (contract(ROUTER_PORT="31000"), "31000")):
        router = launch.process("router")
        assert (value(router, "--port"), value(router, "--host")) == (port, "0.0.0.0")
        asked = [proof.target for proof in router.ready if proof.kind != "output"]
        assert {target.split("/")[2] for target in asked} == {f"10.0.0.1:{port}"}


def test_the_router_s_policies_are_the_public_one_unless_the_user_names_others() -> None:
    router = contract(PREFILL_ROUTER_POLICY="random", DECODE_ROUTER_POLICY="random").process("router")
    for flag in ("--policy", "--prefill-policy", "--decode-policy"):
        assert value(router, flag) == "consistent_hash"
    asked = attrs.evolve(LaunchSpec(engine="", model="").router, policy="round_robin", decode_policy="cache_aware")
    router = planned(router=asked).process("router")
    assert [value(router, flag) for flag in ("--policy", "--prefill-policy", "--decode-policy")] == [
        "round_robin",
        "round_robin",
        "cache_aware",
    ]


def test_the_router_has_an_image_of_its_own_where_containers_are_used() -> None:
    assert planned().ranks[0].groups[0].container is None
    groups = planned(image="vllm:x", ib_devices=["rdma0"]).ranks[0].groups
    images = [group.container.image for group in groups if group.container]
    assert images == ["vllm:x", versions.ROUTER_IMAGE]
    asked = attrs.evolve(LaunchSpec(engine="", model="").router, image="router:y")
    groups = planned(image="vllm:x", router=asked).ranks[0].groups
    assert [group.container.image for group in groups if group.container] == ["vllm:x", "router:y"]


def test_the_metrics_port_is_told_to_the_router_only_where_it_is_another() -> None:
    assert "--prometheus-port" not in planned().process("router").argv
    launch = planned(settings={"prometheus_port": 29555})
    assert value(launch.process("router"), "--prometheus-port") == "29555"
    busy = planned(facts={0: NodeFacts(listening_ports=[29000])}, ib_devices=["rdma0"]).process("router")
    assert busy.ports["prometheus"] != 29000
    assert value(busy, "--prometheus-port") == str(busy.ports["prometheus"])


def test_another_router_than_ours_is_refused() -> None:
    assert contract(ROUTER_TYPE="vllm-router")
    with pytest.raises(SpecError, match="ROUTER_TYPE"):
        contract(ROUTER_TYPE="nginx")


# --- addresses, ports, shared nodes ------------------------------------------------------------------------------


def test_the_addresses_and_interfaces_of_a_node_are_its_own() -> None:
    facts = {0: NodeFacts(default_interface="eth7", nics=[nic("rdma0"), nic("rdma1", state="DOWN"), nic("rdma2")])}
    launch = planned(facts=facts)
    env = launch.process("prefill-0").env
    assert env["VLLM_HOST_IP"] == "10.0.0.1"
    assert (env["NCCL_SOCKET_IFNAME"], env["GLOO_SOCKET_IFNAME"]) == ("eth7", "eth7")
    assert (env["NCCL_IB_HCA"], env["UCX_NET_DEVICES"]) == ("rdma0,rdma2", "rdma0:1")
    other = launch.process("decode-0").env
    assert other["VLLM_HOST_IP"] == "10.0.0.2"
    assert not {"NCCL_SOCKET_IFNAME", "NCCL_IB_HCA", "UCX_NET_DEVICES"} & set(other)


def test_r19_path_variables_gain_whole_elements_in_their_order() -> None:
    process = planned().process("prefill-0")
    assert not {"PATH", "LD_LIBRARY_PATH", "PYTHONPATH"} & {*process.env, *process.env_append}
    assert process.env_prepend["PATH"] == ("/usr/local/ucx/bin", "/usr/local/bin/etcd", "/root/.cargo/bin")
    assert process.env_prepend["LD_LIBRARY_PATH"][0] == "/usr/local/ucx/lib"
    assert all(part and ":" not in part for parts in process.env_prepend.values() for part in parts)


def test_servers_on_one_node_have_gpus_and_ports_of_their_own() -> None:
    launch = planned(nodes=1, prefill=RoleSpec(tp=4), decode=RoleSpec(tp=4))
    prefill, decode = launch.process("prefill-0"), launch.process("decode-0")
    assert (prefill.env["HIP_VISIBLE_DEVICES"], decode.env["HIP_VISIBLE_DEVICES"]) == ("0,1,2,3", "4,5,6,7")
    for process in (prefill, decode):
        assert "CUDA_VISIBLE_DEVICES" in process.unset
        assert value(process, "--port") == transfer(process)["http_port"] == str(process.ports["http"])
    for name in ("http", "handshake", "notify"):
        assert prefill.ports[name] != decode.ports[name]
    assert "2584 is taken on this node" in source(launch, "decode-0", "argv/--port")


def test_on_nvidia_gpus_the_other_variable_is_set_and_nothing_of_rocm() -> None:
    facts = {0: NodeFacts(gpu_vendor="nvidia")}
    launch = planned(nodes=1, connector="vllm-nixl", facts=facts, prefill=RoleSpec(tp=4), decode=RoleSpec(tp=4))
    decode = launch.process("decode-0")
    assert decode.env["CUDA_VISIBLE_DEVICES"] == "4,5,6,7"
    assert "HIP_VISIBLE_DEVICES" in decode.unset
    assert not {"ROCM_PATH", "HSA_ENABLE_SDMA", "UCX_TLS"} & set(decode.env)
    assert "--all2all-backend" not in decode.argv
    m3 = planned("MiniMax-M3-MXFP4", connector="vllm-nixl", facts=facts, decode=RoleSpec(tp=8))
    assert any("are for AMD GPUs" in message for message in warnings(m3))
    assert "--moe-backend" not in m3.process("prefill-0").argv


def test_a_server_with_a_node_of_its_own_sees_all_of_it() -> None:
    process = planned(prefill=RoleSpec(tp=4), decode=RoleSpec(tp=4)).process("decode-0")
    assert not {"HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "VLLM_PORT"} & {*process.env, *process.unset}


def test_b03_each_server_of_a_node_searches_ports_in_a_window_of_its_own() -> None:
    roles: dict[str, Any] = {"prefill": RoleSpec(workers=4, tp=2), "decode": RoleSpec(tp=8)}
    launch = planned(nodes=4, gpus_per_node=4, connector="vllm-nixl", waive=["attention-tp"], **roles)
    windows: dict[str, list[tuple[int, int]]] = {}
    for rank in launch.ranks:
        for process in rank.processes():
            if "window" in process.ports:
                assert process.env["VLLM_PORT"] == str(process.ports["window"])
                first = process.ports["window"]
                windows.setdefault(rank.node.address, []).append((first, first + process.port_counts["window"]))
    assert windows
    for runs in windows.values():
        assert all(before[1] <= after[0] for before, after in zip(sorted(runs), sorted(runs)[1:], strict=False))


def test_fixed_ports_stand_and_a_clash_of_two_is_refused() -> None:
    launch = contract(SERVER_PORT="2600")
    assert [value(launch.process(name), "--port") for name in ("prefill-0", "decode-0")] == ["2600", "2600"]
    assert source(launch, "prefill-0", "argv/--port") == "environment contract SERVER_PORT"
    with pytest.raises(PortError, match=r"2600"):
        planned(nodes=1, prefill=RoleSpec(tp=4), decode=RoleSpec(tp=4), settings={"server_port": 2600})
    with pytest.raises(PortError, match=r"--port of prefill-0 says '9'"):
        contract(EXTRA_SERVER_ARGS="--port 9")


def test_ipv6_nodes_are_bound_and_named_as_such() -> None:
    asked = read_spec(
        options={"engine": "vllm-disagg", "model": KIMI, "connector": "vllm-nixl", "nodes": "fd00::1,fd00::2"},
        recipe=None,
        environ={},
        host=HOST,
    )
    launch = plan(asked, host=HOST)
    router = launch.process("router")
    assert value(router, "--host") == "::"
    assert value(router, "--decode") == "http://[fd00::2]:2584"
    assert value(launch.process("decode-0"), "--host") == "::"
    assert launch.process("decode-0").env["VLLM_NIXL_SIDE_CHANNEL_HOST"] == "fd00::2"
    assert launch.process("decode-0").ready[0].target == "http://[fd00::2]:2584/health"


# --- readiness, nodes --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["vllm/kimi_1p1d_ports", "vllm/kimi_2p2d_tp8", "vllm/kimi_1k1k_1p2d_tp8_decode_ep8"])
def test_r1_what_the_launcher_waits_for_is_proved_no_sooner_and_as_long(name: str) -> None:
    case = load(name)
    launch = case.plan()
    proofs = [proof for rank in launch.ranks for process in rank.processes() for proof in process.ready]
    for barrier in case.data["ranks"][0]["barriers"]:
        if barrier["when"] == "before_server":
            continue
        for target in barrier["targets"]:
            place = target.split("//")[-1].split("/")[0]
            asked = [proof for proof in proofs if proof.target.split("//")[-1].split("/")[0] == place]
            assert asked, target
            assert all(proof.timeout_s >= barrier["timeout_s"] for proof in asked)


def test_the_time_for_loading_can_be_set() -> None:
    launch = planned(settings={"server_timeout_s": 60, "router_timeout_s": 30})
    assert launch.process("decode-0").ready[0].timeout_s == 60
    assert {proof.timeout_s for proof in launch.process("router").ready} == {30}


def test_a_container_gets_gpus_nics_limits_and_the_nics_own_libraries() -> None:
    facts = {0: NodeFacts(nics=[nic("ionic_0")], gpu_vendor="amd"), 1: NodeFacts(gpu_vendor="nvidia")}
    launch = planned(facts=facts, image="vllm:x", ib_devices=["ionic_0"], connector="vllm-nixl")
    first, second = (rank.groups[0].container for rank in launch.ranks)
    assert first is not None
    assert second is not None
    assert {"/dev/kfd", "/dev/dri", "/dev/infiniband"} <= set(first.needs.devices)
    assert first.needs.ulimits["memlock"] == "-1"
    assert first.needs.ipc_host
    ionic = [mount for mount in first.needs.mounts if "ionic" in mount.source]
    assert ionic
    assert all(mount.optional for mount in ionic)
    assert second.needs.devices == ("/dev/infiniband",)
    assert not [mount for mount in second.needs.mounts if "ibverbs" in mount.source]


def test_preflight_asks_for_model_gpus_and_named_devices() -> None:
    checks = {(each.kind, each.target) for each in planned(ib_devices=["rdma0"]).ranks[0].groups[0].preflight}
    assert checks == {
        ("path_exists", f"/models/{KIMI}"),
        ("device_present", "/dev/kfd"),
        ("device_present", "/dev/dri"),
        ("path_exists", "/sys/class/infiniband/rdma0"),
    }


def test_stand_ins_get_the_very_argv_and_the_router_is_the_real_one() -> None:
    launch = planned(simulate=True, engine_version="0.21.0")
    decode, router = launch.process("decode-0"), launch.process("router")
    cut = decode.exec.index("--")
    assert decode.exec[:cut] == ("@python", "-m", "disagg_vllm.simulation", "--catalogue-version", "0.21.0")
    assert decode.exec[cut + 1 :] == decode.argv
    assert router.exec == (*OFFLINE, "vllm_router.launch_router", *router.argv[1:])


# --- run files ---------------------------------------------------------------------------------------------------

EXAMPLES = sorted(path.name for path in (ROOT / "examples").glob("*vllm*.yaml"))


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_run_file_is_planned_without_a_warning(name: str) -> None:
    for options in ({}, {"simulate": True}):
        launch = plan(read_spec(options=options, recipe=ROOT / "examples" / name, environ={}, host=HOST), host=HOST)
        assert launch.warnings == ()
    assert len(EXAMPLES) >= 5


def test_the_run_file_of_the_expert_recipe_gives_the_job_script_s_commands() -> None:
    recipe = ROOT / "examples" / "minimax-m25-fp8-mi355x-vllm-ep.yaml"
    devices = ",".join(f"rdma{number}" for number in range(8))
    options = {"nodes": "10.0.0.1,10.0.0.2,10.0.0.3", "ib_devices": devices}
    asked = read_spec(options=options, recipe=recipe, environ={}, host=HOST)
    case = load("vllm/minimax_m25_1p2d_ep8")
    differing = {each.item for each in compare(case, plan(asked, case.facts(), host=HOST))}
    assert {item for item in differing if item.startswith("flag")} <= {
        "flag --kv-transfer-config kv_connector_extra_config.proxy_ping_port",
        "flag --vllm-discovery-address",
    }
