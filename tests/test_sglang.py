"""The SGLang plugin: what its servers are given, and why; faults of its launchers by number."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from disagg_run import ArgText, BenchSpec, Layer, ParityError, RoleSpec, Source, SpecError, plan
from disagg_run.simulation.offline import OFFLINE
from disagg_run.spec.reading import read_spec
from disagg_run.testing import check_engine
from disagg_sglang import models
from tests.parity.case import load
from tests.sglang_plans import CONTRACT, HOST, contract, planned, source, spec, value, values

ROOT = Path(__file__).parents[1]
DEP = {"dp_attention": True, "expert_parallel": True}


def both(**fields: Any) -> dict[str, Any]:
    """The same role for prefill and decode."""
    return {"prefill": RoleSpec(**fields), "decode": RoleSpec(**fields)}


# --- the contract ------------------------------------------------------------------------------------------------


def test_the_engine_keeps_the_contract() -> None:
    check_engine("sglang-disagg")


@pytest.mark.parametrize("model", [row.name for row in models.read_models()])
@pytest.mark.parametrize(("prefill", "decode"), [(1, 1), (2, 1), (1, 2)])
@pytest.mark.parametrize("mode", [{}, {"dp_attention": True}, {"expert_parallel": True}, DEP])
def test_every_model_is_planned_without_a_remark(model: str, prefill: int, decode: int, mode: dict[str, Any]) -> None:
    sides: dict[str, Any] = {"prefill": RoleSpec(workers=prefill, **mode), "decode": RoleSpec(workers=decode, **mode)}
    assert planned(model, nodes=prefill + decode, **sides).warnings == ()


@pytest.mark.parametrize("name", ["r1_metrics_router_overrides", "dsv4_di_1p1d_dep8_c512", "dsr1_fp8_1p2d_tp8"])
def test_gates_wait_for_what_the_launchers_waited_for_and_no_shorter(name: str) -> None:
    case = load(f"sglang/{name}")
    launch = case.plan()
    heads = [proof for rank in launch.ranks for process in rank.processes() for proof in process.ready]
    patience: dict[str, float] = {}
    for proof in heads:
        place = proof.target.split("/")[2]
        patience[place] = max(patience.get(place, 0.0), proof.timeout_s)
    for barrier in case.data["ranks"][0]["barriers"]:
        if barrier["when"] in ("after_server", "after_router") and barrier["timeout_s"]:
            for target in barrier["targets"]:
                place = target.split("/")[2] if "//" in target else target
                assert patience[place] >= barrier["timeout_s"]


# --- who set what ------------------------------------------------------------------------------------------------


def test_each_value_names_its_source() -> None:
    launch = planned("DeepSeek-V4-Pro", bench=BenchSpec(concurrency=(64, 512)), ib_devices=["rdma0"], **both(**DEP))
    assert source(launch, "decode-0", "argv/--watchdog-timeout") == "engine default (plugin sglang-disagg)"
    assert "highest of bench.concurrency" in source(launch, "decode-0", "argv/--max-running-requests")
    assert "prompt 8192 + completion 1024 + 1" in source(launch, "prefill-0", "argv/--context-length")
    assert source(launch, "decode-0", "argv/--disaggregation-transfer-backend") == "connector (plugin sglang-mori)"
    assert source(launch, "decode-0", "argv/--disaggregation-ib-device") == "Python LaunchSpec"
    table = (ROOT / "plugins/sglang/disagg_sglang/models.yaml").read_text().splitlines()
    for key, text in {
        "env/GPU_MAX_HW_QUEUES": "GPU_MAX_HW_QUEUES",
        "env/MORI_IO_QP_MAX_SEND_WR": "io_qp_max_send_wr",
        "argv/--page-size": "page_size",
        "argv/--cuda-graph-bs-decode": "graph_sizes: 128",
    }.items():
        said = source(launch, "decode-0", key)
        line = int(said.split("models.yaml:")[1].split()[0].rstrip(":"))
        assert said.startswith("model table"), said
        assert text in table[line - 1], (key, table[line - 1])


def test_an_explicit_flag_beats_the_computed_number() -> None:
    args = ArgText(words=("--max-running-requests", "99"), source=Source(layer=Layer.RUN_FILE, where="r.yaml:3"))
    launch = planned(bench=BenchSpec(concurrency=(512,)), decode=RoleSpec(args=[args], **DEP), prefill=RoleSpec(**DEP))
    assert value(launch.process("decode-0"), "--max-running-requests") == "99"
    assert value(launch.process("prefill-0"), "--max-running-requests") == "512"


# --- faults of the public launchers ------------------------------------------------------------------------------


def test_R7_no_speculation_is_no_flag_and_an_unknown_way_is_refused() -> None:
    for name in ("prefill-0", "decode-0"):
        assert not [word for word in planned().process(name).argv if word.startswith("--speculative")]
    with pytest.raises(SpecError, match=r"no way of speculation is known for 'GLM-5-FP8', but MTP 2 is"):
        contract(MODEL_NAME="GLM-5-FP8", DECODE_MTP_SIZE="2")
    assert (
        "--speculative-algorithm" not in contract(MODEL_NAME="GLM-5-FP8", DECODE_MTP_SIZE="0").process("decode-0").argv
    )


def test_speculation_asked_of_one_side_holds_for_both() -> None:
    launch = planned(decode=RoleSpec(mtp=3))
    for name in ("prefill-0", "decode-0"):
        process = launch.process(name)
        assert value(process, "--speculative-algorithm") == "NEXTN"
        assert value(process, "--speculative-num-steps") == "3"
        assert value(process, "--speculative-num-draft-tokens") == "4"
    assert "prefill and decode must speculate alike" in source(launch, "prefill-0", "argv/--speculative-num-steps")
    with pytest.raises(ParityError, match="speculation-tokens"):
        planned(prefill=RoleSpec(mtp=1), decode=RoleSpec(mtp=2))


@pytest.mark.parametrize(("load", "tokens", "running"), [(4, 1, 8), (8, 1, 8), (9, 2, 9), (2048, 256, 2048)])
def test_R9_no_rank_is_left_without_tokens_or_requests(load: int, tokens: int, running: int) -> None:
    launch = planned(bench=BenchSpec(concurrency=(load,)), **both(**DEP))
    decode = launch.process("decode-0")
    assert decode.env["SGLANG_MORI_NUM_MAX_DISPATCH_TOKENS_PER_RANK"] == str(tokens)
    assert value(decode, "--max-running-requests") == str(running)
    assert f"concurrency {load} over 8 DP ranks" in source(
        launch, "decode-0", "env/SGLANG_MORI_NUM_MAX_DISPATCH_TOKENS_PER_RANK"
    )


def test_R10_a_pinned_threshold_stays_and_a_derived_one_counts_draft_tokens() -> None:
    name = "SGLANG_MORI_DISPATCH_INTER_KERNEL_SWITCH_THRESHOLD"
    load = BenchSpec(concurrency=(512,))
    pinned = planned("DeepSeek-V4-Pro", bench=load, **both(**DEP))
    assert {pinned.process(each).env[name] for each in ("prefill-0", "decode-0")} == {"4096"}
    assert {planned(bench=load, **both(**DEP)).process(each).env[name] for each in ("prefill-0", "decode-0")} == {"128"}
    drafting = planned(bench=load, **both(mtp=1, **DEP)).process("decode-0")
    assert (drafting.env["SGLANG_MORI_NUM_MAX_DISPATCH_TOKENS_PER_RANK"], drafting.env[name]) == ("128", "256")


def test_a_larger_load_is_not_cut_to_the_tables_least_buffer() -> None:
    tokens = "SGLANG_MORI_NUM_MAX_DISPATCH_TOKENS_PER_RANK"
    for concurrency, wanted in ((512, "128"), (4096, "512")):
        launch = planned("DeepSeek-V4-Pro", bench=BenchSpec(concurrency=(concurrency,)), **both(**DEP))
        assert launch.process("decode-0").env[tokens] == wanted


def test_R11_an_unset_tp_size_is_all_gpus_of_a_node() -> None:
    launch = contract(
        PREFILL_TP_SIZE="", DECODE_TP_SIZE="", GPUS_PER_NODE="4", PREFILL_ENABLE_DP="true", DECODE_ENABLE_DP="true"
    )
    prefill = launch.process("prefill-0")
    assert value(prefill, "--tp-size") == "4"
    assert value(prefill, "--max-running-requests") == "12"
    assert value(prefill, "--chunked-prefill-size") == "32768"
    assert not [word for rank in launch.ranks for each in rank.processes() for word in each.argv if "*" in word]


def test_R19_path_variables_gain_whole_elements_only() -> None:
    process = planned().process("prefill-0")
    assert "PYTHONPATH" not in process.env
    assert process.env_prepend["PYTHONPATH"] == ("/sgl-workspace/aiter",)
    assert planned(settings={"aiter_dir": "/opt/aiter"}).process("router").env_prepend["PYTHONPATH"] == ("/opt/aiter",)


def test_R31_the_request_rate_is_kept() -> None:
    asked = read_spec(options={}, recipe=None, environ={**CONTRACT, "BENCH_REQUEST_RATE": "4.5"}, host=HOST)
    assert asked.bench.request_rate == "4.5"


# --- modes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", [row.name for row in models.read_models()])
@pytest.mark.parametrize("tp", [4, 8])
@pytest.mark.parametrize("mode", [{"expert_parallel": True}, DEP])
def test_a_chunk_of_prefill_fits_into_the_dispatch_buffer(model: str, tp: int, mode: dict[str, Any]) -> None:
    # srt/server_args.py asserts it at start-up for MoRI; the chunk is divided over DP ranks before.
    process = planned(model, **both(tp=tp, **mode)).process("prefill-0")
    ranks = tp if "dp_attention" in mode else 1
    chunk = int(value(process, "--chunked-prefill-size")) // ranks
    assert chunk <= int(process.env["SGLANG_MORI_NUM_MAX_DISPATCH_TOKENS_PER_RANK"])


def test_an_evaluation_drops_no_tokens_and_dispatches_by_the_models_gate() -> None:
    fast, judged = (
        contract(PREFILL_ENABLE_EP="true", RUN_EVAL=text).process("prefill-0") for text in ("false", "true")
    )
    assert value(fast, "--ep-dispatch-algorithm") == "fake"
    assert fast.env["SGLANG_MORI_MOE_MAX_INPUT_TOKENS"] == "32768"
    assert "--ep-dispatch-algorithm" not in judged.argv
    assert "SGLANG_MORI_MOE_MAX_INPUT_TOKENS" not in judged.env


def test_an_agentic_evaluation_accepts_drafts_as_they_are() -> None:
    asked = {"MODEL_NAME": "DeepSeek-V4-Pro", "IS_AGENTIC": "1", "DECODE_MTP_SIZE": "3"}
    assert contract(**asked).process("decode-0").env["SGLANG_SIMULATE_ACC_LEN"] == "2.49"
    assert "SGLANG_SIMULATE_ACC_LEN" not in contract(**asked, RUN_EVAL="true").process("decode-0").env
    assert "SGLANG_SIMULATE_ACC_LEN" not in contract(**asked | {"DECODE_MTP_SIZE": "2"}).process("decode-0").env


def test_an_agentic_run_of_any_model_keeps_the_prefix_cache() -> None:
    assert "--disable-radix-cache" in contract().process("prefill-0").argv
    assert "--disable-radix-cache" not in contract(IS_AGENTIC="true").process("prefill-0").argv


def test_dp_attention_over_one_gpu_is_none() -> None:
    argv = planned(**both(tp=1, dp_attention=True)).process("prefill-0").argv
    assert not {"--attn-dp-size", "--enable-dp-lm-head"} & set(argv)


def test_dp_attention_in_replicas_is_refused() -> None:
    with pytest.raises(SpecError, match=r"prefill asks for DP attention .* in 2 replicas .*more prefill workers"):
        planned(prefill=RoleSpec(tp=4, dp=2, dp_attention=True))


def test_replicas_are_counted_by_dp_size() -> None:
    process = planned(prefill=RoleSpec(tp=4, dp=2)).process("prefill-0")
    assert (value(process, "--tp-size"), value(process, "--dp-size")) == ("4", "2")
    assert process.gpus == tuple(range(8))


def test_stand_ins_parse_by_the_version_that_is_planned_for() -> None:
    for version, parser in (("0.5.12", "0.5.12"), ("0.5.15.post1", "0.5.14"), ("0.6.0", "0.5.23")):
        launch = plan(spec(simulate=True, engine_version=version), host=HOST)
        words = launch.process("decode-0").exec
        assert words[:5] == ("@python", "-m", "disagg_sglang.simulation", "--catalogue-version", parser)
        assert words[words.index("--") + 1 :] == launch.process("decode-0").argv
        router = launch.process("router")
        assert router.exec == (*OFFLINE, "sglang_router.launch_router", *router.argv[3:])


def test_graphs_are_captured_for_every_size() -> None:
    assert values(planned().process("decode-0"), "--cuda-graph-bs-decode") == [str(size) for size in range(1, 129)]
