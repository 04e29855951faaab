"""The ATOM plugin: what its servers are given, and why; faults of its launchers by number."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from disagg_atom import connector_mooncake, models
from disagg_run import (
    ArgText,
    BenchSpec,
    FlagError,
    Layer,
    ParityError,
    RoleSpec,
    Source,
    SpecError,
    TopologyError,
    plan,
)
from disagg_run.spec.reading import read_spec
from tests.atom_plans import HOST, contract, planned
from tests.parity.case import load
from tests.parity.comparing import compare
from tests.plan_values import source, value

ROOT = Path(__file__).parents[1]


# --- the contract -----------------------------------------------------------------------------------------------------


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


# --- who set what -----------------------------------------------------------------------------------------------------


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
    assert (new.layer, old.layer, text) == (Layer.PROGRAM, Layer.MODEL, "32768")


# --- faults of the public launchers -----------------------------------------------------------------------------------


def test_R11_an_unset_tp_size_is_all_gpus_of_a_node() -> None:
    launch = contract(PREFILL_TP_SIZE="", DECODE_TP_SIZE="", GPUS_PER_NODE="4")
    assert [value(launch.process(name), "-tp") for name in ("prefill-0", "decode-0")] == ["4", "4"]
    assert source(launch, "prefill-0", "argv/-tp") == "core default: all GPUs of a node"


def test_R12_lists_json_and_blanks_in_extra_arguments_arrive_whole() -> None:
    launch = contract(EXTRA_SERVER_ARGS="""--enforce-eager --hf-overrides '{"a b": [1, "*"]}' --chat-template 'x  y'""")
    for name in ("prefill-0", "decode-0"):
        process = launch.process(name)
        assert "--enforce-eager" in process.argv
        assert json.loads(value(process, "--hf-overrides")) == {"a b": [1, "*"]}
        assert value(process, "--chat-template") == "x  y"
    sizes = json.loads(value(launch.process("decode-0"), "--cudagraph-capture-sizes"))
    assert sizes == [1, 2, 4, *range(8, 257, 8)]


def test_R13_quantisation_follows_the_attention_of_its_own_role() -> None:
    launch = planned("MiniMax-M3-MXFP4", prefill=RoleSpec(dp_attention=True), decode=RoleSpec(), waive=["attention-tp"])
    assert "--online_quant_config" not in launch.process("prefill-0").argv
    assert json.loads(value(launch.process("decode-0"), "--online_quant_config"))["global_quant_config"] == "ptpc_fp8"


def test_R14_experts_are_spread_without_dp_attention_too() -> None:
    launch = planned(prefill=RoleSpec(expert_parallel=True))
    assert "--enable-expert-parallel" in launch.process("prefill-0").argv
    assert "--enable-dp-attention" not in launch.process("prefill-0").argv
    assert "--enable-expert-parallel" not in launch.process("decode-0").argv


def test_R15_an_unknown_model_is_refused_with_the_nearest() -> None:
    with pytest.raises(SpecError, match=r"no model 'DeepSeek-V4-Pr0'.*did you mean 'DeepSeek-V4-Pro'\?"):
        planned("DeepSeek-V4-Pr0")


def test_R16_B66_an_explicit_length_beats_the_table_but_what_scripts_always_export_does_not() -> None:
    exported = {"MEM_FRAC_STATIC": "0.85", "BLOCK_SIZE": "16", "MODEL_NAME": "MiniMax-M3-MXFP8"}
    process = contract(**exported).process("decode-0")
    assert (value(process, "--block-size"), value(process, "--gpu-memory-utilization")) == ("128", "0.8")
    launch = contract(**exported | {"MAX_MODEL_LEN": "65536", "BLOCK_SIZE": "64"})
    for name in ("prefill-0", "decode-0"):
        assert value(launch.process(name), "--max-model-len") == "65536"
        assert value(launch.process(name), "--block-size") == "64"
    assert source(launch, "decode-0", "argv/--block-size") == "environment contract BLOCK_SIZE"


def test_R17_B58_a_worker_over_two_nodes_is_refused_with_the_largest_size() -> None:
    with pytest.raises(TopologyError) as error:
        planned(nodes=3, decode=RoleSpec(tp=16))
    assert "16" in str(error.value)
    assert "8" in error.value.remedy


def test_R19_path_variables_gain_whole_elements_only() -> None:
    process = planned().process("prefill-0")
    assert "LD_LIBRARY_PATH" not in process.env
    assert process.env_prepend["LD_LIBRARY_PATH"] == (connector_mooncake.LIBRARIES, "/opt/rocm/lib")
    other = planned(settings={"mooncake_library_dir": "/opt/mooncake"}).process("prefill-0")
    assert other.env_prepend["LD_LIBRARY_PATH"] == ("/opt/mooncake", "/opt/rocm/lib")


# --- sizes, speculation, what both sides share ------------------------------------------------------------------------


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


def test_B29_a_length_for_one_side_only_is_refused() -> None:
    with pytest.raises(ParityError, match=r"max-model-len is '9216' for prefill-0 .* but not set for decode-0"):
        planned(prefill=RoleSpec(settings={"max_model_len": 9216}))


def test_B38_a_flag_that_the_server_does_not_have_is_refused_with_the_nearest() -> None:
    with pytest.raises(FlagError, match=r"no flag '--num-draft-tokens'.*did you mean '--num-speculative-tokens'"):
        contract(EXTRA_SERVER_ARGS="--num-draft-tokens 3")
    with pytest.raises(FlagError, match=r"--kv_cache_dtype .* does not take 'fp9': did you mean 'fp8'"):
        contract(EXTRA_SERVER_ARGS="--kv_cache_dtype fp9")


def test_capture_sizes_are_a_list_of_numbers() -> None:
    args = value(
        planned(settings={"cudagraph_capture_sizes": [1, 8]}).process("prefill-0"), "--cudagraph-capture-sizes"
    )
    assert args == "[1,8]"
    for wrong in ("8", [0], [True], {"a": 1}):
        with pytest.raises(SpecError, match="cudagraph_capture_sizes is"):
            planned(settings={"cudagraph_capture_sizes": wrong})


def test_B41_an_override_keeps_what_the_launcher_depends_on() -> None:
    args = ArgText(words=("--kv-transfer-config", '{"num_worker_threads": 8}', "-tp", "4"))
    process = planned(decode=RoleSpec(tp=4, args=[args]), prefill=RoleSpec(tp=4)).process("decode-0")
    assert json.loads(value(process, "--kv-transfer-config")) == {
        "kv_role": "kv_consumer",
        "kv_connector": "mooncake",
        "proxy_ip": "10.0.0.2",
        "handshake_port": 6301,
        "num_worker_threads": 8,
    }
    assert value(process, "--server-port") == "8020"


def test_B61_attention_split_differently_is_refused_where_nobody_knows_it_to_work() -> None:
    sides: dict[str, Any] = {"prefill": RoleSpec(tp=8), "decode": RoleSpec(tp=4)}
    with pytest.raises(ParityError, match=r"attention-tp is 8 for .* but 4 for .* --waive attention-tp"):
        planned("MiniMax-M3-MXFP4", **sides)
    waived = planned("MiniMax-M3-MXFP4", waive=["attention-tp"], **sides)
    assert waived.process("decode-0").gpus == (0, 1, 2, 3)
    assert [remark.source for remark in waived.waived] == ["attention-tp"]
    assert planned("Kimi-K2.5-MXFP4", **sides).process("decode-0").gpus == (0, 1, 2, 3)
    with pytest.raises(ParityError, match=r"attention-tp is 1 for prefill-0 .* but 8 for decode-0"):
        planned(prefill=RoleSpec(dp_attention=True))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--index-cache-dtype fp8", "index-cache-dtype is not set for prefill-0 (the engine's own default of"),
        ("--index_cache_dtype bf16", "index-cache-dtype is not set for prefill-0 (the engine's own default of"),
        ("-dcp 8", "decode-context-parallel-size is '1' for prefill-0 (the engine's own default of"),
        ('--dcp-config {"size":8}', "decode-context-parallel-size is not set for prefill-0 (the engine's own"),
    ],
)
def test_what_lays_kv_out_on_one_role_only_is_refused(words: str, said: str) -> None:
    told = RoleSpec(args=[ArgText(words=words.split())])
    with pytest.raises(ParityError) as caught:
        planned(decode=told)
    assert str(caught.value).startswith(said)
    assert " for decode-0 (Python), and " in str(caught.value)
    assert planned(prefill=told, decode=told).warnings == planned().warnings


def test_what_the_engine_does_by_itself_may_be_said_on_one_role() -> None:
    assert planned(decode=RoleSpec(args=[ArgText(words=["-dcp", "1"])])).waived == ()


@pytest.mark.parametrize(("prefill", "decode"), [(1, 2), (2, 1)])
def test_roles_in_unequal_stages_are_refused_since_decode_would_ask_where_nobody_listens(
    prefill: int, decode: int
) -> None:
    def sides(prefill: int, decode: int) -> dict[str, Any]:
        return {"prefill": RoleSpec(tp=4, pp=prefill), "decode": RoleSpec(tp=4, pp=decode)}

    with pytest.raises(ParityError) as caught:
        planned(**sides(prefill, decode))
    said = [
        f"{stages} for {name} ({'core default' if stages == 1 else 'Python LaunchSpec'}"
        for name, stages in (("prefill-0", prefill), ("decode-0", decode))
    ]
    assert str(caught.value).startswith(f"pipeline-parallel-size is {said[0]}")
    assert f" but {said[1]}" in str(caught.value)
    assert planned(**sides(2, 2)).process("prefill-0").ports["handshake"] == 6301
    assert planned(waive=["pipeline-parallel-size"], **sides(prefill, decode)).waived[0].source
