"""The vLLM plugin: how a worker is spread over GPUs and nodes, and what prefill and decode have in common."""

from __future__ import annotations

import json
from typing import Any

import pytest

from disagg_run import ArgText, FlagError, ParityError, RoleSpec, SpecError, TopologyError
from tests.engine_plans import typed
from tests.vllm_plans import KIMI, M25, contract, planned, source, value

# --- sizes -------------------------------------------------------------------------------------------------------


def test_R4_data_parallel_attention_is_one_rank_a_gpu_with_flags_that_vllm_has() -> None:
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


PUSH = typed("--kv-transfer-config.kv_connector", "NixlPushConnector")


def test_pipeline_stages_are_counted_with_the_gpus() -> None:
    sides: dict[str, Any] = {"prefill": RoleSpec(tp=4, pp=2), "decode": RoleSpec(tp=4)}
    process = planned(connector="vllm-nixl", args=[PUSH], **sides).process("prefill-0")
    assert (value(process, "--tensor-parallel-size"), value(process, "--pipeline-parallel-size")) == ("4", "2")
    assert process.gpus == tuple(range(8))


@pytest.mark.parametrize(
    ("fields", "prefill", "decode", "told"),
    [
        ({}, 1, 2, "decode has 2 pipeline stages .* share MoRI-IO's handshake and notify ports.* --decode-pp 1"),
        ({"engine_version": "0.22.1"}, 2, 2, "prefill has 2 pipeline stages .* share MoRI-IO's"),
        ({"connector": "vllm-nixl"}, 1, 2, "decode has 2 pipeline stages .* NIXL takes KV into one alone"),
        ({"connector": "vllm-nixl", "args": [PUSH]}, 1, 2, "decode has 2 pipeline stages"),
        ({"connector": "vllm-nixl"}, 2, 1, "prefill has 2 pipeline stages .* or give --args '--kv-transfer-config"),
        ({"connector": "vllm-nixl", "engine_version": "0.22.1"}, 2, 1, "from vLLM 0.26.0 on"),
    ],
)
def test_pipeline_stages_between_which_kv_does_not_move_are_refused(
    fields: dict[str, Any], prefill: int, decode: int, told: str
) -> None:
    with pytest.raises(TopologyError, match=told):
        planned(prefill=RoleSpec(tp=4, pp=prefill), decode=RoleSpec(tp=4, pp=decode), **fields)
    assert planned(prefill=RoleSpec(tp=4), decode=RoleSpec(tp=4), **fields)


@pytest.mark.parametrize("fields", [{}, {"connector": "vllm-nixl", "engine_version": "0.28.0"}])
def test_decode_context_parallelism_of_one_side_is_refused_where_peers_do_not_tell_it(fields: dict[str, Any]) -> None:
    with pytest.raises(ParityError) as caught:
        planned(decode=RoleSpec(args=[typed("-dcp", "8")]), **fields)
    assert "decode-context-parallel is '1' for prefill-0 (the engine's own default of --" in str(caught.value)
    assert "but '8' for decode-0 (Python --args)" in str(caught.value)
    assert planned(args=[typed("-dcp", "8")], **fields)
    assert planned(decode=RoleSpec(args=[typed("-dcp", "1")]), **fields)


def test_nixl_takes_ranks_that_have_all_kv_or_their_share_of_all() -> None:
    eight, two = [typed("-dcp", "8")], [typed("-dcp", "2")]
    nixl: dict[str, Any] = {"connector": "vllm-nixl"}
    assert planned(KIMI, decode=RoleSpec(args=eight), **nixl)
    for model, args in ((KIMI, two), (M25, eight), (KIMI, [*eight, PUSH])):
        with pytest.raises(FlagError, match=r"-dcp of prefill says .* made for '1' .* with an MLA model"):
            planned(model, args=args, **nixl)


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
def test_B29_a_value_for_one_side_only_is_refused_by_name(settings: dict[str, Any], name: str) -> None:
    with pytest.raises(ParityError, match=f"{name} is .* for prefill-0 .*--waive {name}"):
        planned(prefill=RoleSpec(settings=settings))
    assert planned(prefill=RoleSpec(settings=settings), waive=[name]).waived


def test_B62_a_switch_of_the_kv_layout_on_one_side_is_refused() -> None:
    for words, name in (
        (("--disable-hybrid-kv-cache-manager",), "hybrid-kv-cache-manager"),
        (("--attention-backend", "ROCM_AITER_FA"), "attention-backend"),
    ):
        with pytest.raises(ParityError, match=name):
            planned(decode=RoleSpec(args=[ArgText(words=words)]))
