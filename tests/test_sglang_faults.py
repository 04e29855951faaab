"""The SGLang plugin: faults that others reported, by number."""

from __future__ import annotations

from typing import Any

import pytest

from disagg_run import ArgText, BenchSpec, FlagError, ParityError, RoleSpec
from disagg_sglang import dispatch
from tests.sglang_plans import contract, planned, source, value

DEP = {"dp_attention": True, "expert_parallel": True}


def test_B29_a_length_for_one_side_only_is_refused() -> None:
    args = ArgText(words=("--context-length", "9216"))
    with pytest.raises(ParityError, match=r"context-length is '9216' for prefill-0 .* but not set for decode-0"):
        planned(prefill=RoleSpec(args=[args]))
    launch = planned("DeepSeek-R1-0528-MXFP4-v2", prefill=RoleSpec(), decode=RoleSpec(**DEP))
    assert {value(launch.process(name), "--context-length") for name in ("prefill-0", "decode-0")} == {"9217"}


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (("--page-size", "64"), "page-size"),
        (("--kv-cache-dtype", "bf16"), "kv-cache-dtype"),
        (("--dsv4-attn-backend", "trtllm"), "kv-layout"),
    ],
)
def test_B62_what_both_sides_must_share_is_compared(words: tuple[str, ...], name: str) -> None:
    with pytest.raises(ParityError, match=name):
        planned(decode=RoleSpec(args=[ArgText(words=words)]))


def test_B38_a_flag_that_the_server_does_not_have_is_refused_with_the_nearest() -> None:
    with pytest.raises(FlagError, match=r"no flag '--max-runing-requests'.*did you mean '--max-running-requests'"):
        contract(EXTRA_SERVER_ARGS="--max-runing-requests 3")
    with pytest.raises(FlagError, match=r"'--cuda-graph-bs' .* is gone since 0\.5\.23.*--cuda-graph-bs-decode"):
        contract(EXTRA_SERVER_ARGS="--cuda-graph-bs 1 2")


def test_B61_attention_split_differently_is_refused_where_nobody_knows_it_to_work() -> None:
    sides: dict[str, Any] = {"prefill": RoleSpec(tp=4), "decode": RoleSpec(tp=8)}
    with pytest.raises(ParityError, match=r"attention-tp is 4 for .* but 8 for .* --waive attention-tp"):
        planned("Qwen3.5-397B-A17B-FP8", **sides)
    assert planned("Qwen3.5-397B-A17B-FP8", waive=["attention-tp"], **sides).process("prefill-0").gpus == (0, 1, 2, 3)
    assert planned("DeepSeek-R1", **sides).process("prefill-0").gpus == (0, 1, 2, 3)


@pytest.mark.parametrize(
    ("ranks", "tokens", "heap"),
    [(8, 8192, None), (16, 16384, None), (17, 128, 8), (32, 128, 8), (32, 16384, 8), (64, 128, 16), (16, 16385, 8)],
)
def test_B63_the_shared_heap_grows_with_expert_ranks_and_dispatch_tokens(
    ranks: int, tokens: int, heap: int | None
) -> None:
    assert dispatch.shmem_heap_gib(ranks, tokens) == heap


def test_B63_a_worker_of_32_expert_ranks_gets_a_larger_heap_than_the_default() -> None:
    launch = planned(nodes=5, decode=RoleSpec(tp=32, **DEP), bench=BenchSpec(concurrency=(512,)))
    for name in ("decode-0", "decode-0.3"):
        assert launch.process(name).env["MORI_SHMEM_HEAP_SIZE"] == "8G"
    assert "32 expert ranks" in source(launch, "decode-0", "env/MORI_SHMEM_HEAP_SIZE")
    assert "MORI_SHMEM_HEAP_SIZE" not in launch.process("prefill-0").env


def test_B19_every_server_is_told_its_own_address() -> None:
    launch = planned(nodes=4, prefill=RoleSpec(workers=2), decode=RoleSpec(tp=16))
    found = {name: launch.process(name).env.get("SGLANG_HOST_IP") for name in launch.process_names()}
    assert found == {
        "prefill-0": "10.0.0.1",
        "router": None,
        "prefill-1": "10.0.0.2",
        "decode-0": "10.0.0.3",
        "decode-0.1": "10.0.0.4",
    }


def test_B62_a_layout_variable_for_one_side_only_is_refused() -> None:
    with pytest.raises(ParityError, match="kv-layout-variable"):
        planned("DeepSeek-V4-Pro", decode=RoleSpec(env={"SGLANG_DSV4_KV_LAYOUT": "v41"}))
    old = planned("DeepSeek-V4-Pro", decode=RoleSpec(env={"SGLANG_DSV4_KV_LAYOUT": "v41"}), engine_version="0.5.12")
    assert old.process("decode-0").env["SGLANG_DSV4_KV_LAYOUT"] == "v41"
