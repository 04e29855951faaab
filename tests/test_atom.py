"""The ATOM plugin: what its servers and router are given, and why; faults of its launchers by number."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import pytest

from disagg_atom import connector_mooncake, models
from disagg_run import (
    ArgText,
    BenchSpec,
    FlagError,
    LaunchPlan,
    LaunchSpec,
    Layer,
    Nic,
    Node,
    NodeFacts,
    ParityError,
    PlannedProcess,
    PortError,
    RoleSpec,
    Source,
    SpecError,
    TopologyError,
    build_host,
    plan,
)
from disagg_run.spec.reading import read_spec
from disagg_run.testing import check_engine
from tests.parity.case import load
from tests.parity.comparing import compare

ROOT = Path(__file__).parents[1]
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
    return plan(spec(model, **fields), facts, host=HOST)


def contract(**environ: str) -> LaunchPlan:
    """The plan for a job script's environment."""
    return plan(read_spec(options={}, recipe=None, environ={**CONTRACT, **environ}, host=HOST), host=HOST)


def value(process: PlannedProcess, flag: str) -> str:
    """The one value of a flag that stands once."""
    assert process.argv.count(flag) == 1, process.argv
    return process.argv[process.argv.index(flag) + 1]


def source(launch: LaunchPlan, process: str, key: str) -> str:
    """Who set a value of a process: ``argv/-tp``, ``env/NAME``."""
    assert launch.sources is not None
    for rank in launch.ranks:
        for number, group in enumerate(rank.groups):
            for index, each in enumerate(group.processes):
                if each.name == process:
                    place = f"/ranks/{rank.rank}/groups/{number}/processes/{index}/{key}"
                    return str(launch.sources.values[place][0][0])
    raise AssertionError(process)


def two_on_a_node(**fields: Any) -> LaunchPlan:
    """Prefill and decode, four GPUs each, on one node."""
    return planned(
        nodes=1, prefill=RoleSpec(tp=4, dp_attention=True), decode=RoleSpec(tp=4, dp_attention=True), **fields
    )


# --- the contract ------------------------------------------------------------------------------------------------


def test_the_engine_keeps_the_contract() -> None:
    check_engine("atom-disagg")


def test_the_public_2p1d_recipe_is_planned_as_it_was_run() -> None:
    case = load("atom/dsv4_2p1d_dpa_tp8")
    assert {each.item for each in compare(case, case.plan())} == {"env ATOM_HOST_IP"}


def test_the_example_run_file_gives_the_same_commands_as_the_job_script() -> None:
    recipe = ROOT / "examples" / "dsv4-fp4-mi355x-atom-disagg.yaml"
    nodes = {"nodes": "10.0.0.1,10.0.0.2,10.0.0.3"}
    ours = plan(read_spec(options=nodes, recipe=recipe, environ={}, host=HOST), host=HOST)
    case = load("atom/dsv4_2p1d_dpa_tp8").plan()
    assert ours.process_names() == case.process_names()
    for name in ours.process_names():
        mine, theirs = ours.process(name), case.process(name)
        assert (mine.argv, mine.env, mine.env_prepend) == (theirs.argv, theirs.env, theirs.env_prepend)


@pytest.mark.parametrize("model", [row.name for row in models.read_models()])
@pytest.mark.parametrize(("prefill", "decode"), [(1, 1), (2, 1), (1, 2)])
@pytest.mark.parametrize("mode", [{}, {"dp_attention": True}, {"expert_parallel": True}])
def test_every_model_is_planned_without_a_remark(model: str, prefill: int, decode: int, mode: dict[str, Any]) -> None:
    sides: dict[str, Any] = {"prefill": RoleSpec(workers=prefill, **mode), "decode": RoleSpec(workers=decode, **mode)}
    assert planned(model, nodes=prefill + decode, **sides).warnings == ()


# --- who set what ------------------------------------------------------------------------------------------------


def test_each_value_names_its_source() -> None:
    recipe = ROOT / "examples" / "dsv4-fp4-mi355x-atom-disagg.yaml"
    launch = plan(read_spec(options={}, recipe=recipe, environ={}, host=HOST), host=HOST)
    assert source(launch, "decode-0", "argv/--block-size") == "engine default (plugin atom-disagg)"
    assert source(launch, "decode-0", "argv/-tp").startswith("run file dsv4-fp4-mi355x-atom-disagg.yaml:")
    assert source(launch, "decode-0", "argv/--max-num-seqs").startswith(
        "engine default (plugin atom-disagg): highest of bench.concurrency (run file dsv4-fp4-mi355x-atom-disagg.yaml:"
    )
    table = (ROOT / "plugins/atom/disagg_atom/models.yaml").read_text().splitlines()
    said = source(launch, "prefill-0", "env/GPU_MAX_HW_QUEUES")
    assert said.startswith("model table models.yaml:")
    line = int(said.split("models.yaml:")[1].split()[0])
    assert "GPU_MAX_HW_QUEUES" in table[line - 1]
    assert source(launch, "decode-0", "argv/--kv-transfer-config/kv_role") == "connector (plugin atom-mooncake)"


def test_explicit_values_beat_the_table_and_show_what_they_replaced() -> None:
    launch = planned("Kimi-K2.5-MXFP4", settings={"max_model_len": 9000})
    assert value(launch.process("decode-0"), "--max-model-len") == "9000"
    assert launch.sources is not None
    (new, _), (old, text) = launch.sources.values["/ranks/1/groups/0/processes/0/argv/--max-model-len"]
    assert (new.layer, old.layer, text) == (Layer.COMMAND_LINE, Layer.MODEL, "32768")


# --- faults of the public launchers ------------------------------------------------------------------------------


def test_r11_an_unset_tp_size_is_all_gpus_of_a_node() -> None:
    launch = contract(PREFILL_TP_SIZE="", DECODE_TP_SIZE="", GPUS_PER_NODE="4")
    assert [value(launch.process(name), "-tp") for name in ("prefill-0", "decode-0")] == ["4", "4"]
    assert source(launch, "prefill-0", "argv/-tp") == "core default: all GPUs of a node"


def test_r12_lists_json_and_blanks_in_extra_arguments_arrive_whole() -> None:
    launch = contract(EXTRA_SERVER_ARGS="""--enforce-eager --hf-overrides '{"a b": [1, "*"]}' --chat-template 'x  y'""")
    for name in ("prefill-0", "decode-0"):
        process = launch.process(name)
        assert "--enforce-eager" in process.argv
        assert json.loads(value(process, "--hf-overrides")) == {"a b": [1, "*"]}
        assert value(process, "--chat-template") == "x  y"
    sizes = json.loads(value(launch.process("decode-0"), "--cudagraph-capture-sizes"))
    assert sizes == [1, 2, 4, *range(8, 257, 8)]


def test_r13_quantisation_follows_the_attention_of_its_own_role() -> None:
    launch = planned("MiniMax-M3-MXFP4", prefill=RoleSpec(dp_attention=True), decode=RoleSpec(), waive=["attention-tp"])
    assert "--online_quant_config" not in launch.process("prefill-0").argv
    assert json.loads(value(launch.process("decode-0"), "--online_quant_config"))["global_quant_config"] == "ptpc_fp8"


def test_r14_experts_are_spread_without_dp_attention_too() -> None:
    launch = planned(prefill=RoleSpec(expert_parallel=True))
    assert "--enable-expert-parallel" in launch.process("prefill-0").argv
    assert "--enable-dp-attention" not in launch.process("prefill-0").argv
    assert "--enable-expert-parallel" not in launch.process("decode-0").argv


def test_r15_an_unknown_model_is_refused_with_the_nearest() -> None:
    with pytest.raises(SpecError, match=r"no model 'DeepSeek-V4-Pr0'.*did you mean 'DeepSeek-V4-Pro'\?"):
        planned("DeepSeek-V4-Pr0")


def test_r16_b66_an_explicit_length_beats_the_table_but_what_scripts_always_export_does_not() -> None:
    exported = {"MEM_FRAC_STATIC": "0.85", "BLOCK_SIZE": "16", "MODEL_NAME": "MiniMax-M3-MXFP8"}
    process = contract(**exported).process("decode-0")
    assert (value(process, "--block-size"), value(process, "--gpu-memory-utilization")) == ("128", "0.8")
    launch = contract(**exported | {"MAX_MODEL_LEN": "65536", "BLOCK_SIZE": "64"})
    for name in ("prefill-0", "decode-0"):
        assert value(launch.process(name), "--max-model-len") == "65536"
        assert value(launch.process(name), "--block-size") == "64"
    assert source(launch, "decode-0", "argv/--block-size") == "environment contract BLOCK_SIZE"


def test_r17_b58_a_worker_over_two_nodes_is_refused_with_the_largest_size() -> None:
    with pytest.raises(TopologyError) as error:
        planned(nodes=3, decode=RoleSpec(tp=16))
    assert "16" in str(error.value)
    assert "8" in error.value.remedy


def test_r18_the_router_is_always_told_the_port_that_its_probes_ask() -> None:
    for launch, port in ((contract(), "30000"), (contract(ROUTER_PORT="31000"), "31000")):
        router = launch.process("router")
        assert value(router, "--port") == port
        assert {proof.target.split("/")[2] for proof in router.ready} == {f"10.0.0.1:{port}"}


def test_r19_path_variables_gain_whole_elements_only() -> None:
    process = planned().process("prefill-0")
    assert "LD_LIBRARY_PATH" not in process.env
    assert process.env_prepend["LD_LIBRARY_PATH"] == (connector_mooncake.LIBRARIES, "/opt/rocm/lib")
    other = planned(settings={"mooncake_library_dir": "/opt/mooncake"}).process("prefill-0")
    assert other.env_prepend["LD_LIBRARY_PATH"] == ("/opt/mooncake", "/opt/rocm/lib")


# --- sizes, speculation, what both sides share -------------------------------------------------------------------


def test_decode_is_sized_by_the_load_and_prefill_by_its_variable() -> None:
    launch = contract(BENCH_MAX_CONCURRENCY="8x512x16", MAX_NUM_SEQS="128")
    assert value(launch.process("prefill-0"), "--max-num-seqs") == "128"
    assert value(launch.process("decode-0"), "--max-num-seqs") == "512"
    assert value(contract(MAX_NUM_SEQS="128").process("decode-0"), "--max-num-seqs") == "128"
    both = planned(bench=BenchSpec(concurrency=(512,)), settings={"max_num_seqs": 64})
    assert value(both.process("decode-0"), "--max-num-seqs") == "64"


def test_an_explicit_flag_beats_the_computed_batch() -> None:
    args = ArgText(words=("--max-num-seqs", "99"), source=Source(layer=Layer.RUN_FILE, where="r.yaml:3"))
    launch = planned(bench=BenchSpec(concurrency=(512,)), decode=RoleSpec(args=[args]))
    assert value(launch.process("decode-0"), "--max-num-seqs") == "99"


def test_speculation_asked_of_one_side_holds_for_both() -> None:
    launch = planned("MiniMax-M3-MXFP8", decode=RoleSpec(mtp=3))
    for name in ("prefill-0", "decode-0"):
        process = launch.process(name)
        assert value(process, "--method") == "eagle3"
        assert value(process, "--draft-model") == "Inferact/MiniMax-M3-EAGLE3"
        assert value(process, "--num-speculative-tokens") == "3"
    assert "prefill and decode must speculate alike" in source(launch, "prefill-0", "argv/--num-speculative-tokens")
    with pytest.raises(ParityError, match="speculation-tokens"):
        planned(prefill=RoleSpec(mtp=1), decode=RoleSpec(mtp=2))


def test_speculation_without_a_known_method_is_refused() -> None:
    with pytest.raises(SpecError, match=r"no way of speculation is known for 'Kimi-K2\.5-MXFP4'.*--method"):
        planned("Kimi-K2.5-MXFP4", decode=RoleSpec(mtp=1))


def test_b29_a_length_for_one_side_only_is_refused() -> None:
    with pytest.raises(ParityError, match=r"max-model-len is '9216' for prefill-0 .* but not set for decode-0"):
        planned(prefill=RoleSpec(settings={"max_model_len": 9216}))


def test_b38_a_flag_that_the_server_does_not_have_is_refused_with_the_nearest() -> None:
    with pytest.raises(FlagError, match=r"no flag '--num-draft-tokens'.*did you mean '--num-speculative-tokens'"):
        contract(EXTRA_SERVER_ARGS="--num-draft-tokens 3")
    with pytest.raises(FlagError, match=r"--kv_cache_dtype .* does not take 'fp9': did you mean 'fp8'"):
        contract(EXTRA_SERVER_ARGS="--kv_cache_dtype fp9")


def test_b67_a_flag_that_the_router_does_not_have_is_refused_with_the_nearest() -> None:
    router = attrs.evolve(LaunchSpec(engine="", model="").router, args=[ArgText(words=("--cache-treshold", "0.3"))])
    with pytest.raises(FlagError, match=r"no flag '--cache-treshold'.*did you mean '--cache-threshold'"):
        planned(router=router)


def test_capture_sizes_are_a_list_of_numbers() -> None:
    args = value(
        planned(settings={"cudagraph_capture_sizes": [1, 8]}).process("prefill-0"), "--cudagraph-capture-sizes"
    )
    assert args == "[1,8]"
    for wrong in ("8", [0], [True], {"a": 1}):
        with pytest.raises(SpecError, match="cudagraph_capture_sizes is"):
            planned(settings={"cudagraph_capture_sizes": wrong})


def test_b41_an_override_keeps_what_the_launcher_depends_on() -> None:
    args = ArgText(words=("--kv-transfer-config", '{"protocol": "tcp"}', "-tp", "4"))
    process = planned(decode=RoleSpec(tp=4, args=[args]), prefill=RoleSpec(tp=4)).process("decode-0")
    assert json.loads(value(process, "--kv-transfer-config")) == {
        "kv_role": "kv_consumer",
        "kv_connector": "mooncake",
        "proxy_ip": "10.0.0.2",
        "handshake_port": 6301,
        "protocol": "tcp",
    }
    assert value(process, "--server-port") == "8020"


def test_b61_attention_split_differently_is_refused_where_nobody_knows_it_to_work() -> None:
    sides: dict[str, Any] = {"prefill": RoleSpec(tp=8), "decode": RoleSpec(tp=4)}
    with pytest.raises(ParityError, match=r"over 8 GPUs and decode over 4 .* --waive attention-tp"):
        planned("MiniMax-M3-MXFP4", **sides)
    assert planned("MiniMax-M3-MXFP4", waive=["attention-tp"], **sides).process("decode-0").gpus == (0, 1, 2, 3)
    assert planned("Kimi-K2.5-MXFP4", **sides).process("decode-0").gpus == (0, 1, 2, 3)
    with pytest.raises(ParityError, match=r"over 1 GPUs and decode over 8"):
        planned(prefill=RoleSpec(dp_attention=True))


# --- addresses, ports, shared nodes ------------------------------------------------------------------------------


def nic(name: str, *addresses: str, gids: Mapping[int, str] | None = None, state: str = "ACTIVE") -> Nic:
    return Nic(name=name, driver="ionic", state=state, netdev=f"net_{name}", addresses=addresses, gids=gids or {})


def test_b19_every_server_is_told_its_own_address() -> None:
    launch = planned(nodes=3, prefill=RoleSpec(workers=2))
    found = {name: launch.process(name).env["ATOM_HOST_IP"] for name in ("prefill-0", "prefill-1", "decode-0")}
    assert found == {"prefill-0": "10.0.0.1", "prefill-1": "10.0.0.2", "decode-0": "10.0.0.3"}
    assert "ATOM_HOST_IP" not in launch.process("router").env


def test_b26_the_data_address_is_that_of_the_chosen_device() -> None:
    facts = {rank: NodeFacts(nics=[nic("ionic_0", f"192.168.10.{rank}"), nic("ionic_1", "fd00::1")]) for rank in (0, 1)}
    launch = planned(facts=facts, ib_devices=["ionic_0", "ionic_1"])
    decode = launch.process("decode-0")
    assert decode.env["ATOM_HOST_IP"] == "192.168.10.1"
    assert json.loads(value(decode, "--kv-transfer-config"))["proxy_ip"] == "10.0.0.2"
    assert [proof.target for proof in decode.ready] == ["http://10.0.0.2:8020/health"]
    assert source(launch, "decode-0", "env/ATOM_HOST_IP").endswith("address of net_ionic_0 behind ionic_0")
    chosen = planned(facts=facts, settings={"ib_device": "ionic_1"}).process("decode-0")
    assert chosen.env["ATOM_HOST_IP"] == "fd00::1"
    assert json.loads(value(chosen, "--kv-transfer-config"))["ib_device"] == "ionic_1"
    assert planned(facts=facts).process("decode-0").env["ATOM_HOST_IP"] == "10.0.0.2"


def test_b23_a_routable_gid_is_chosen_where_the_automatic_one_is_link_local() -> None:
    gids = {0: "fe80:0000:0000:0000:0690:81ff:fe00:0001", 1: "fd93:16d3:59b6:0000:0000:0000:0000:0001"}
    nics = [nic("ionic_0", gids=gids), nic("ionic_1", gids=gids), nic("ionic_2", state="DOWN")]
    launch = planned(facts={0: NodeFacts(nics=nics)})
    env = launch.process("prefill-0").env
    assert {name: env[name] for name in connector_mooncake.GID_VARIABLES} == {
        "MC_GID_INDEX": "1",
        "NCCL_IB_GID_INDEX": "1",
        "UCX_IB_GID_INDEX": "1",
    }
    assert "routable on ionic_0, ionic_1" in source(launch, "prefill-0", "env/MC_GID_INDEX")
    assert "MC_GID_INDEX" not in launch.process("decode-0").env


FE80, FD00, IPV4 = "fe80::1", "fd00::1", "::ffff:10.0.0.1"


@pytest.mark.parametrize(
    ("nics", "index"),
    [
        ([], None),
        ([nic("a")], None),
        ([nic("a", gids={0: FE80, 1: FD00})], 1),
        ([nic("a", gids={0: FE80, 1: FE80, 2: FD00}), nic("b", gids={0: FE80, 1: FD00, 2: FD00})], 2),
        ([nic("a", gids={0: FE80, 1: FD00}), nic("b", gids={0: FE80})], None),
        ([nic("a", gids={0: FE80, 1: FD00}), nic("b")], None),
        ([nic("a", gids={0: FE80, 1: FE80, 2: IPV4, 3: IPV4})], None),
        ([nic("a", gids={0: FE80})], None),
        ([nic("a", gids={0: FE80, 1: "::", 2: "no gid", 3: FD00})], 3),
    ],
)
def test_a_gid_index_is_forced_only_where_it_helps(nics: list[Nic], index: int | None) -> None:
    chosen = connector_mooncake.gid_index(tuple(nics))
    assert (chosen and chosen[0]) == index


def test_servers_on_one_node_have_gpus_and_ports_of_their_own() -> None:
    launch = two_on_a_node()
    prefill, decode = launch.process("prefill-0"), launch.process("decode-0")
    assert prefill.env["HIP_VISIBLE_DEVICES"] == "0,1,2,3"
    assert decode.env["HIP_VISIBLE_DEVICES"] == "4,5,6,7"
    for process in (prefill, decode):
        assert "CUDA_VISIBLE_DEVICES" in process.unset
        assert process.env["ATOM_DP_MASTER_PORT"] == str(process.ports["dp_master"])
        assert process.env["ATOM_DP_BASE_PORT"] == str(process.ports["dp_base"])
    for name in ("dp_master", "dp_base", "http"):
        assert prefill.ports[name] != decode.ports[name]
    assert prefill.port_counts["dp_base"] == 4


def test_a_server_with_a_node_of_its_own_sees_all_of_it() -> None:
    process = planned(prefill=RoleSpec(tp=4), decode=RoleSpec(tp=4)).process("decode-0")
    assert not {"HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "ATOM_DP_BASE_PORT", "ATOM_DP_MASTER_PORT"} & {
        *process.env,
        *process.unset,
    }


def test_two_prefill_workers_of_a_node_have_handshake_ports_apart_and_the_router_finds_both() -> None:
    launch = planned(nodes=2, pack=True, prefill=RoleSpec(workers=2, tp=4), decode=RoleSpec(tp=4))
    first, second = launch.process("prefill-0"), launch.process("prefill-1")
    assert first.ports["handshake"] + first.port_counts["handshake"] <= second.ports["handshake"]
    config = json.loads(value(second, "--kv-transfer-config"))
    assert config["handshake_port"] == second.ports["handshake"]
    argv = launch.process("router").argv
    urls = {argv[index + 1] for index, word in enumerate(argv) if word == "--prefill"}
    assert urls == {f"http://10.0.0.1:{each.ports['http']}" for each in (first, second)}
    assert f"{8010} is taken on this node" in source(launch, "prefill-1", "argv/--server-port")


def test_only_prefill_listens_for_handshakes_and_a_fixed_port_reaches_both() -> None:
    launch = contract(HANDSHAKE_PORT="7000")
    assert launch.process("prefill-0").ports["handshake"] == 7000
    assert launch.process("prefill-0").port_counts["handshake"] == 8
    assert "handshake" not in launch.process("decode-0").ports
    for name in ("prefill-0", "decode-0"):
        assert json.loads(value(launch.process(name), "--kv-transfer-config"))["handshake_port"] == 7000
        said = source(launch, name, "argv/--kv-transfer-config/handshake_port")
        assert said == "environment contract HANDSHAKE_PORT"


@pytest.mark.parametrize(
    ("role", "ranks"),
    [
        (RoleSpec(tp=8), 1),
        (RoleSpec(tp=8, dp_attention=True), 8),
        (RoleSpec(tp=2, dp=4), 4),
        (RoleSpec(tp=4, dp=2, dp_attention=True), 8),
    ],
)
def test_dp_ranks_meet_on_a_port_only_where_there_are_some(role: RoleSpec, ranks: int) -> None:
    assert models.dp_ranks(role) == ranks
    process = planned(prefill=role, decode=role).process("prefill-0")
    assert process.port_counts["handshake"] == 8
    assert process.ports.get("dp_master") == (29500 if ranks > 1 else None)
    assert ("-dp" in process.argv) == (role.dp > 1)


def test_fixed_ports_stand_and_a_clash_of_two_is_refused() -> None:
    launch = contract(PREFILL_PORT="9000", DECODE_PORT="9001")
    assert [value(launch.process(name), "--server-port") for name in ("prefill-0", "decode-0")] == ["9000", "9001"]
    assert source(launch, "prefill-0", "argv/--server-port") == "environment contract PREFILL_PORT"
    with pytest.raises(PortError, match=r"9000"):
        two_on_a_node(settings={"prefill_port": 9000, "decode_port": 9000})


# --- readiness ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["atom/dsv4_2p1d_dpa_tp8", "atom/kimi_1p2d_tp4_tp8"])
def test_r1_readiness_is_asked_of_each_role_on_its_own_port_as_the_launcher_does(name: str) -> None:
    case = load(name)
    barriers = [each for each in case.data["ranks"][0]["barriers"] if each["kind"] == "http_ok"]
    launch = case.plan()
    proofs = [proof for each in launch.ranks for process in each.processes() for proof in process.ready]
    asked = {(proof.target, proof.timeout_s) for proof in proofs if proof.kind == "http"}
    expected = {(t.replace("//0.0.0.0:", "//10.0.0.1:"), b["timeout_s"]) for b in barriers for t in b["targets"]}
    assert asked == expected


def test_the_router_is_proved_by_its_models_and_then_a_generation() -> None:
    ready = planned(settings={"router_timeout_s": 60}, served_model_name="dsv4").process("router").ready
    assert [(each.kind, each.target, each.timeout_s) for each in ready] == [
        ("http", "http://10.0.0.1:30000/v1/models", 60.0),
        ("generation", "http://10.0.0.1:30000/v1/completions", 60.0),
    ]
    assert {each.identity["served_model"] for each in ready} == {"dsv4"}


def test_the_router_s_metrics_port_can_be_fixed() -> None:
    launch = planned(settings={"prometheus_port": 29555})
    assert value(launch.process("router"), "--prometheus-port") == "29555"
    assert launch.process("router").ports["prometheus"] == 29555
    assert source(launch, "router", "argv/--prometheus-port").startswith("command line")


def test_the_model_id_is_the_served_name_or_the_model_as_typed() -> None:
    assert planned().model.served_name == "/models/DeepSeek-V4-Pro"
    launch = planned(served_model_name="dsv4")
    assert launch.model.served_name == "dsv4"
    for name in ("prefill-0", "decode-0"):
        assert value(launch.process(name), "--served-model-name") == "dsv4"
        assert launch.process(name).ready[0].identity["served_model"] == "dsv4"


def test_the_job_scripts_router_policies_count_unless_they_are_what_it_always_exports() -> None:
    argv = contract(PREFILL_ROUTER_POLICY="random", DECODE_ROUTER_POLICY="random").process("router").argv
    assert not {"--prefill-policy", "--decode-policy"} & {*argv}
    router = contract(PREFILL_ROUTER_POLICY="cache_aware").process("router")
    assert value(router, "--prefill-policy") == "cache_aware"


def test_router_policies_for_a_role_stand_only_where_they_differ() -> None:
    argv = contract(PREFILL_ROUTER_POLICY="random", DECODE_ROUTER_POLICY="random").process("router").argv
    assert "--prefill-policy" not in argv
    router = attrs.evolve(LaunchSpec(engine="", model="").router, policy="round_robin", prefill_policy="cache_aware")
    other = planned(router=router).process("router")
    assert value(other, "--policy") == "round_robin"
    assert value(other, "--prefill-policy") == "cache_aware"
    assert "--decode-policy" not in other.argv


# --- nodes -------------------------------------------------------------------------------------------------------


def test_a_container_gets_gpus_nics_limits_and_the_nics_own_libraries() -> None:
    facts = {0: NodeFacts(nics=[nic("ionic_0")]), 1: NodeFacts(nics=[Nic(name="mlx5_0", driver="mlx5_core")])}
    launch = planned(facts=facts, image="atom:x", ib_devices=["ionic_0"])
    containers = [rank.groups[0].container for rank in launch.ranks]
    assert containers[0] is not None
    assert containers[1] is not None
    needs = containers[0].needs
    assert {"/dev/kfd", "/dev/dri", "/dev/infiniband"} <= set(needs.devices)
    assert needs.ulimits["memlock"] == "-1"
    assert "/models/DeepSeek-V4-Pro" in {mount.source for mount in needs.mounts}
    ionic = {mount.source for mount in needs.mounts if "ionic" in mount.source}
    assert ionic
    assert all(mount.optional for mount in needs.mounts if mount.source in ionic)
    assert not {mount.source for mount in containers[1].needs.mounts if "ibverbs" in mount.source}


def test_a_snapshot_of_a_hugging_face_cache_is_mounted_with_what_it_links_to() -> None:
    path = "/hf/hub/models--deepseek-ai--DeepSeek-V4-Pro/snapshots/0123"
    container = planned(image="atom:x", model_path=path).ranks[0].groups[0].container
    assert container is not None
    assert container.needs.mounts[0].source == "/hf/hub/models--deepseek-ai--DeepSeek-V4-Pro"


def test_preflight_asks_for_model_gpus_and_named_devices_but_not_under_simulation() -> None:
    checks = {(each.kind, each.target) for each in planned(ib_devices=["rdma0"]).ranks[0].groups[0].preflight}
    assert checks >= {
        ("path_exists", "/models/DeepSeek-V4-Pro"),
        ("device_present", "/dev/kfd"),
        ("path_exists", "/sys/class/infiniband/rdma0"),
        ("path_exists", connector_mooncake.LIBRARIES),
    }
    assert planned(simulate=True).ranks[0].groups[0].preflight == ()


def test_stand_ins_get_the_very_argv() -> None:
    launch = planned(simulate=True)
    for name, module in (("decode-0", "disagg_atom.simulation"), ("router", "disagg_atom.atomesh_simulation")):
        process = launch.process(name)
        assert process.exec[:4] == ("@python", "-m", module, "--")
        assert process.exec[4:] == process.argv
