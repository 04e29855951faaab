"""What SGLang's prefill and decode must have in common, by every release and connector."""

from __future__ import annotations

import re
from typing import Any

import pytest

from disagg_run import ArgText, ParityError, RoleSpec
from tests.sglang_plans import planned

RELEASES = ("0.5.9", "0.5.12", "0.5.23")
CONNECTORS = ("sglang-mori", "sglang-mooncake")
EAGLE = (
    "--speculative-algorithm EAGLE --speculative-num-steps 3 --speculative-eagle-topk 1"
    " --speculative-num-draft-tokens 4"
)
QWEN = "Qwen3.5-397B-A17B-FP8"


def side(words: str, **fields: Any) -> RoleSpec:
    return RoleSpec(args=[ArgText(words=words.split())], **fields)


def refused(model: str = "DeepSeek-R1-0528", **fields: Any) -> str:
    with pytest.raises(ParityError) as caught:
        planned(model, **fields)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("connector", CONNECTORS)
def test_speculation_of_one_role_is_refused_by_every_release_and_connector(release: str, connector: str) -> None:
    fields: dict[str, Any] = {"engine_version": release, "connector": connector}
    message = refused(decode=side(EAGLE), **fields)
    assert message.startswith(
        "speculation is not set for prefill-0 (the engine's own default of --speculative-algorithm)"
        " but 'EAGLE' for decode-0 (Python)"
    )
    assert "--waive speculation" in message
    both = planned(prefill=side(EAGLE), decode=side(EAGLE), **fields)
    assert both.warnings == planned(**fields).warnings
    assert planned(decode=RoleSpec(mtp=3), **fields).process("prefill-0")


@pytest.mark.parametrize("connector", CONNECTORS)
@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--speculative-num-steps 3", r"speculation-steps is '2' for prefill-0 \(.*mtp.*\) but '3' for decode-0 "),
        ("--speculative-eagle-topk 2", "speculation-topk is '1' for prefill-0 .* but '2' for decode-0 "),
        ("--speculative-num-draft-tokens 4", "speculation-tokens is '3' for prefill-0 .* but '4' for decode-0 "),
        ("--speculative-draft-model-path /x", "draft-model is not set for prefill-0 .* but '/x' for decode-0 "),
        ("--speculative-draft-model /x", "draft-model is not set for prefill-0 .* but '/x' for decode-0 "),
    ],
)
def test_how_a_role_speculates_is_compared(words: str, said: str, connector: str) -> None:
    message = refused(connector=connector, prefill=RoleSpec(mtp=2), decode=side(words))
    assert re.match(said, message.replace("Python LaunchSpec", "mtp")), message
    assert planned(connector=connector, prefill=side(words, mtp=2), decode=side(words)).process("decode-0")


@pytest.mark.parametrize(
    ("model", "words", "said", "fields"),
    [
        *(
            (
                "DeepSeek-R1-0528",
                "--kv-cache-dtype auto",
                "kv-cache-dtype is 'fp8_e4m3' for prefill-0 (model table models.yaml:",
                {"engine_version": release},
            )
            for release in RELEASES
        ),
        ("DeepSeek-R1-0528", "--dtype float16", "dtype is not set for prefill-0 (the engine's own default", {}),
        ("DeepSeek-R1-0528", "--dcp-size 8", "decode-context-parallel-size is not set for prefill-0 (the engine", {}),
        (
            "DeepSeek-R1-0528",
            "--decode-context-parallel-size 8",
            "decode-context-parallel-size is not set for prefill-0",
            {"engine_version": "0.5.16"},
        ),
        (QWEN, "--mamba-ssm-dtype bfloat16", "mamba-ssm-dtype is not set for prefill-0 (the engine's own", {}),
        ("DeepSeek-V4-Pro", "--enable-deepseek-v4-fp4-indexer", "indexer-dtype is not set for prefill-0", {}),
    ],
)
def test_what_lays_kv_out_is_compared(model: str, words: str, said: str, fields: dict[str, Any]) -> None:
    message = refused(model, decode=side(words), **fields)
    assert message.startswith(said), message
    assert f" but {words.split()[-1]!r} for decode-0 (Python), and " in message
    both = planned(model, prefill=side(words), decode=side(words), **fields)
    assert both.warnings == planned(model, **fields).warnings


@pytest.mark.parametrize(
    ("prefill", "decode"),
    [
        ("--dtype half", "--dtype float16"),
        ("--dtype auto", ""),
        ("--dcp-size 1", ""),
        ("--speculative-algorithm NEXTN", "--speculative-algorithm EAGLE"),
    ],
)
def test_two_spellings_of_one_value_are_alike(prefill: str, decode: str) -> None:
    assert planned(prefill=side(prefill), decode=side(decode)).waived == ()


def test_a_state_s_format_by_variable_is_compared_too() -> None:
    env = {"SGLANG_MAMBA_SSM_DTYPE": "bfloat16"}
    assert refused(QWEN, decode=RoleSpec(env=env)).startswith("mamba-ssm-dtype is not set for prefill-0 ")
    assert planned(QWEN, env=env).process("decode-0")


@pytest.mark.parametrize(("release", "prefill", "decode"), [("0.5.9", 1, 2), ("0.5.12", 4, 2), ("0.5.23", 2, 4)])
def test_decode_has_as_many_stages_as_prefill_or_one(release: str, prefill: int, decode: int) -> None:
    fields: dict[str, Any] = {"engine_version": release, "waive": ["attention-tp"]}
    sides = {"prefill": RoleSpec(tp=2, pp=prefill), "decode": RoleSpec(tp=2, pp=decode)}
    message = refused(**sides, **fields)
    own = "core default" if prefill == 1 else "Python LaunchSpec"
    assert message.startswith(
        f"pipeline-parallel-size is {prefill} for prefill-0 ({own}) but {decode} for decode-0 (Python LaunchSpec)"
    )
    assert "--waive pipeline-parallel-size" in message
    for stages in (1, prefill):
        legal = {"prefill": RoleSpec(tp=2, pp=prefill), "decode": RoleSpec(tp=2, pp=stages)}
        assert planned(**legal, engine_version=release).waived == ()
