"""vLLM: what prefill and decode must share where several flags or variables lead to one thing; plans, stand-ins."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from disagg_run import FlagError, ParityError, RoleSpec
from disagg_run.simulation.arguments import build_parser, read_catalogue
from disagg_run.simulation.process import Died
from disagg_vllm import simulation
from disagg_vllm.simulation_settings import Settings, read_settings
from tests.engine_plans import typed
from tests.simulation.vllm_argv import argv
from tests.vllm_plans import KIMI, M3, M25, planned

CATALOGUE = Path(simulation.__file__).parent / "catalogues" / "vllm-serve-0.32.0.json"


def stand_in(words: str = "", family: str = "moriio", version: str = "0.32.0", **environ: str) -> Settings:
    parser = build_parser(read_catalogue(CATALOGUE), prog="vllm serve")
    return read_settings(parser.parse_args([*argv("both", family=family), *shlex.split(words)][2:]), environ, version)


@pytest.mark.parametrize(
    ("words", "name", "shown"),
    [
        ("--spec-method ngram --spec-tokens 3", "speculation", "'ngram'"),
        ("--spec-tokens 3", "speculation", "'3'"),
        ("--spec-model /draft", "speculation", "'/draft'"),
        ("--attention-config.backend TRITON_MLA", "attention-backend", "'TRITON_MLA'"),
        ("-ac.backend=TRITON_MLA", "attention-backend", "'TRITON_MLA'"),
        ("""-ac '{"backend": "TRITON_MLA"}'""", "attention-backend", "'TRITON_MLA'"),
    ],
)
def test_B62_another_door_to_a_shared_value_is_compared_too(words: str, name: str, shown: str) -> None:
    given = typed(*shlex.split(words))
    with pytest.raises(ParityError) as caught:
        planned(decode=RoleSpec(args=[given]))
    text = str(caught.value)
    assert f"{name} is not set for prefill-0 (the engine's own default of --" in text
    assert f"but {shown} for decode-0 (Python --args)" in text
    assert planned(args=[given])
    assert planned(decode=RoleSpec(args=[given]), waive=[name]).waived


@pytest.mark.parametrize("words", ["--spec-method ngram --spec-tokens 3", "--attention-config.backend TRITON_MLA"])
def test_B62_stand_ins_compare_another_door_too(words: str) -> None:
    line = words.replace("--attention-config.backend TRITON_MLA", """-ac '{"backend": "TRITON_MLA"}'""")
    assert stand_in(line).shared != stand_in().shared
    assert stand_in(line).shared == stand_in(line).shared


def test_two_doors_to_one_value_are_refused_as_the_engine_refuses_them() -> None:
    with pytest.raises(FlagError, match=r"--spec-tokens of prefill says '3' \(Python --args\).*--speculative-config"):
        planned(M3, prefill=RoleSpec(mtp=3), decode=RoleSpec(mtp=3), args=[typed("--spec-tokens", "3")])
    assert planned(M3, args=[typed("--spec-method", "ngram", "--spec-tokens", "3")])
    with pytest.raises(FlagError, match=r"backend of --attention-config of prefill is 'X' .* --attention-backend"):
        planned(M3, args=[typed("--attention-config.backend", "X")])
    assert planned(M3, args=[typed("--attention-config.flash_attn_version", "2")])
    with pytest.raises(Died, match=r"--spec-tokens and --speculative-config\['num_speculative_tokens'\] are mutually"):
        stand_in("""--spec-tokens 3 --speculative-config '{"num_speculative_tokens": 3}'""")
    with pytest.raises(Died, match=r"attention_backend and attention_config\.backend are mutually exclusive"):
        stand_in("""--attention-backend A -ac '{"backend": "A"}'""")


@pytest.mark.parametrize(
    ("model", "name", "variable", "text", "there"),
    [
        (M25, "shuffled-kv-cache", "VLLM_ROCM_SHUFFLE_KV_CACHE_LAYOUT", "0", "'1' for prefill-0 (model table"),
        (KIMI, "shuffled-kv-cache", "VLLM_ROCM_SHUFFLE_KV_CACHE_LAYOUT", "1", "not set for prefill-0"),
        (KIMI, "kv-cache-layout", "VLLM_KV_CACHE_LAYOUT", "HND", "not set for prefill-0"),
        (KIMI, "aiter", "VLLM_ROCM_USE_AITER", "0", "'1' for prefill-0 (engine default"),
        (KIMI, "aiter-mla", "VLLM_ROCM_USE_AITER_MLA", "0", "not set for prefill-0"),
        (KIMI, "aiter-mha", "VLLM_ROCM_USE_AITER_MHA", "0", "not set for prefill-0"),
        (KIMI, "mla", "VLLM_MLA_DISABLE", "1", "not set for prefill-0"),
    ],
)
@pytest.mark.parametrize("connector", ["vllm-moriio", "vllm-nixl"])
def test_B62_a_variable_of_the_kv_layout_for_one_side_is_refused(
    connector: str, model: str, name: str, variable: str, text: str, there: str
) -> None:
    asked: dict[str, Any] = {"model": model, "connector": connector}
    with pytest.raises(ParityError) as caught:
        planned(decode=RoleSpec(env={variable: text}), **asked)
    assert f"{name} is {there}" in str(caught.value)
    assert f"but {text!r} for decode-0" in str(caught.value)
    assert planned(env={variable: text}, **asked)
    own = {"VLLM_ROCM_SHUFFLE_KV_CACHE_LAYOUT": "1"} if model == M25 else {"VLLM_ROCM_USE_AITER": "1"}
    assert stand_in(**{**own, variable: text}).shared != stand_in(**own).shared


def test_a_variable_that_says_what_the_other_side_has_anyway_passes() -> None:
    for name, text in (("VLLM_ROCM_USE_AITER_MLA", "1"), ("VLLM_ROCM_SHUFFLE_KV_CACHE_LAYOUT", "False")):
        assert planned(decode=RoleSpec(env={name: text}))
        assert stand_in(**{name: text}).shared == stand_in().shared


def test_what_no_release_reads_any_more_is_not_compared() -> None:
    side: dict[str, Any] = {"decode": RoleSpec(env={"VLLM_V1_USE_PREFILL_DECODE_ATTENTION": "1"})}
    assert planned(**side)
    with pytest.raises(ParityError, match=r"prefill-decode-attention is not set for prefill-0 .* '1' for decode-0"):
        planned(engine_version="0.16.0", **side)
