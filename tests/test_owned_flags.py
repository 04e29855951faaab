"""Flags that follow from an option of the plan: by hand they may only say the same."""

from __future__ import annotations

from typing import Any

import pytest

from disagg_run import ArgText, FlagError, ProcessSpec, RoleSpec
from disagg_run.spec.model import RouterSpec
from tests import atom_plans, sglang_plans, vllm_plans
from tests.engine_plans import PLANNED, typed
from tests.plan_values import value


def by_hand(text: str) -> ArgText:
    return typed(*text.split())


def refused(engine: str, words: str, **spec: Any) -> str:
    """The message for words that are given to all servers by hand."""
    with pytest.raises(FlagError) as caught:
        PLANNED[engine](args=[by_hand(words)], **spec)
    return str(caught.value)


@pytest.mark.parametrize(
    ("engine", "words", "told", "remedy"),
    [
        ("sglang", "--tp-size 4", "made for '8'", "use --prefill-tp 4"),
        ("sglang", "--tensor-parallel-size 4", "made for '8'", "use --prefill-tp 4"),
        ("sglang", "--pp-size 2", "made for '1'", "use --prefill-pp 2"),
        ("sglang", "--dp-size 2", "made for '1'", "use --prefill-dp 2"),
        ("sglang", "--enable-dp-attention", "made without --enable-dp-attention", "use --prefill-dp-attention"),
        ("sglang", "--model-path /other", "made for '/models/DeepSeek-R1-0528'", "use --model-path /other"),
        ("sglang", "--served-model-name r1", "made for '/models/DeepSeek-R1-0528'", "use --served-model-name r1"),
        ("sglang", "--nnodes 2", "made for '1'", "leave it out: it follows from --prefill-tp"),
        ("sglang", "--node-rank 1", "made for '0'", "leave it out: it follows from --nodes"),
        ("vllm", "-tp 4", "made for '8'", "use --prefill-tp 4"),
        ("vllm", "--tensor_parallel_size 4", "made for '8'", "use --prefill-tp 4"),
        ("vllm", "--pipeline-parallel-size 2", "made for '1'", "use --prefill-pp 2"),
        ("vllm", "--data-parallel-size 2", "made for '1'", "use --prefill-dp 2"),
        ("vllm", "--served-model-name k", "made for 'Kimi-K2.5-MXFP4'", "use --served-model-name k"),
        ("vllm", "--nnodes 2", "made for '1'", "leave it out: it follows from --prefill-tp"),
        ("vllm", "--headless", "made without --headless", "leave it out: it follows from --nodes"),
        ("atom", "-tp 4", "made for '8'", "use --prefill-tp 4"),
        ("atom", "--tensor-parallel-size 4", "made for '8'", "use --prefill-tp 4"),
        ("atom", "-pp 2", "made for '1'", "use --prefill-pp 2"),
        ("atom", "-dp 2", "made for '1'", "use --prefill-dp 2"),
        ("atom", "--enable-dp-attention", "made without --enable-dp-attention", "use --prefill-dp-attention"),
        ("atom", "--model /other", "made for '/models/DeepSeek-V4-Pro'", "use --model-path /other"),
        ("atom", "--served-model-name x", "made for '/models/DeepSeek-V4-Pro'", "use --served-model-name x"),
    ],
)
def test_a_flag_by_hand_against_the_plan_is_refused_with_the_option(
    engine: str, words: str, told: str, remedy: str
) -> None:
    message = refused(engine, words)
    assert message.startswith(f"{words.split()[0]} of prefill says ")
    assert "(Python --args), but the plan is " + told in message
    assert remedy in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("engine", "words"),
    [
        ("sglang", "--tensor-parallel-size 8 --pp-size 1 --nnodes 1 --model-path /models/DeepSeek-R1-0528"),
        ("vllm", "--tensor-parallel-size 8 --data-parallel-size 1 --nnodes 1"),
        ("atom", "-tp 8 -pp 1 -dp 1 --model /models/DeepSeek-V4-Pro"),
    ],
)
def test_the_same_value_by_hand_is_no_contradiction(engine: str, words: str) -> None:
    launch = PLANNED[engine](args=[by_hand(words)])
    for name in ("prefill-0", "decode-0"):
        assert "8" in launch.process(name).argv
        assert launch.process(name).gpus == tuple(range(8))


def test_a_role_and_a_process_are_told_their_own_option() -> None:
    with pytest.raises(FlagError, match=r"--tp-size of decode says '4' .* use --decode-tp 4"):
        sglang_plans.planned(decode=RoleSpec(args=[by_hand("--tp-size 4")]))
    with pytest.raises(FlagError, match=r"-tp of decode says '4' .* use --decode-tp 4"):
        vllm_plans.planned(processes={"decode-0": ProcessSpec(args=[by_hand("-tp 4")])})
    assert value(sglang_plans.planned(prefill=RoleSpec(tp=4, args=[by_hand("--tp-size 4")])).process("prefill-0"),
                 "--tp-size") == "4"  # fmt: skip


def test_what_dp_attention_makes_of_the_sizes_is_not_undone_by_hand() -> None:
    both = {"prefill": RoleSpec(dp_attention=True), "decode": RoleSpec(dp_attention=True)}
    assert "it follows from --prefill-dp-attention" in refused("vllm", "--data-parallel-size 4", **both)
    assert "it follows from --prefill-dp-attention" in refused("sglang", "--attn-dp-size 4", **both)
    assert "made for '8'" in refused("sglang", "--dp-size 4", engine_version="0.5.12", **both)
    assert "made for '1'" in refused("sglang", "--dp-size 4", engine_version="0.5.23", **both)
    assert "use --prefill-dp-attention in its place" in refused("sglang", "--enable-dp-attention")


def test_a_worker_over_two_nodes_keeps_its_nodes_and_ranks() -> None:
    over_two = RoleSpec(tp=16)
    for words, told in (("--nnodes 4", "'2'"), ("--node-rank 1", "'0'")):
        assert told in refused("sglang", words, nodes=3, prefill=over_two)
        assert told in refused("vllm", words, nodes=4, prefill=over_two, decode=over_two, connector="vllm-nixl")


def test_the_router_and_flags_that_nothing_follows_from_are_as_free_as_before() -> None:
    launch = atom_plans.planned(
        args=[by_hand("--max-num-seqs 8")], router=RouterSpec(args=[by_hand("--policy round_robin")])
    )
    assert value(launch.process("decode-0"), "--max-num-seqs") == "8"
    assert value(launch.process("router"), "--policy") == "round_robin"
