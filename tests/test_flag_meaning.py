"""Values are compared by what they mean to the program: parity, what is held to the plan, ports that are told."""

from __future__ import annotations

from typing import Any

import pytest

from disagg_run import ArgText, FlagError, ParityError, PortError, ProcessSpec, RoleSpec, plan
from disagg_run.catalogue import load_catalogue
from disagg_run.flag_meaning import flag_meaning, json_meaning, read_size, says, text_meaning
from disagg_run.flags import merge_flags, split_words
from disagg_run.host import build_host
from tests.engine_plans import PLANNED, TYPED, typed
from tests.planning.toy import HOST, spec
from tests.toy_flags import TOY


def meaning(words: str) -> Any:
    """What one flag of the toy's parser means."""
    return flag_meaning(merge_flags(split_words(words.split(), TOY, TYPED), TOY, where="decode-0"), TOY)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("--block-size 16", "--block-size 016"),
        ("--block-size 16", "--block-size=+16"),
        ("--memory 1e-3", "--memory 0.001"),
        ("--memory .5", "--memory 0.50"),
        ("--sizes 1 02", "--sizes 01 2"),
        ("--backend deep_gemm", "--backend Deep-GEMM"),
        ('--kv-config {"a":1,"b":[true]}', '--kv-config {"b":[true],"a":1.0}'),
        ("--origins [1]", "--origins [1.0]"),
        ("--tensor-parallel-size 8", "-tp 08"),
    ],
)
def test_two_spellings_of_one_value_mean_the_same(one: str, other: str) -> None:
    assert meaning(one) == meaning(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("--block-size 16", "--block-size 32"),
        ("--max-len auto", "--max-len 4096"),
        ("--sizes 1 2", "--sizes 12"),
        ('--kv-config {"a":1}', '--kv-config {"a":true}'),
        ('--kv-config {"a":[1,2]}', '--kv-config {"a":[2,1]}'),
        ("--chunked", "--no-chunked"),
        ("--loader 1", "--loader 01"),
        ("--mystery 1", "--mystery 01"),
    ],
)
def test_values_that_differ_mean_different_things(one: str, other: str) -> None:
    assert meaning(one) != meaning(other)


def test_a_literal_that_stands_for_nothing_counts_as_not_given() -> None:
    assert meaning("--kv-config None") is None
    assert flag_meaning([], TOY) is None


@pytest.mark.parametrize(
    ("engine", "text", "number"),
    [
        ("vllm-disagg", "32K", 32768),
        ("vllm-disagg", "32k", 32000),
        ("vllm-disagg", "25.6k", 25600),
        ("vllm-disagg", "1M", 1048576),
        ("vllm-disagg", "1.5K", None),
        ("vllm-disagg", "32Ki", None),
        ("sglang-disagg", "32Ki", 32768),
        ("sglang-disagg", "1M", 1000000),
        ("sglang-disagg", "32K", None),
        ("sglang-disagg", "1.5Ki", None),
        ("sglang-disagg", " 4096 ", 4096),
    ],
)
def test_a_size_is_the_number_that_the_engine_s_own_parser_makes_of_it(
    engine: str, text: str, number: int | None
) -> None:
    refs = [ref for ref in build_host().engine(engine).catalogues if ref.program == "server"]
    newest = load_catalogue(refs[-1])
    size = newest.lookup("--max-model-len" if engine == "vllm-disagg" else "--context-length")
    assert size is not None
    assert read_size(text, size.suffixes) == number
    assert text_meaning(text, size) == (text if number is None else number)


@pytest.mark.parametrize(
    ("given", "meant", "same"),
    [
        ("08", 8, True),
        ("+8", 8, True),
        ("8.0", 8, False),
        (8.0, 8, True),
        ("0.50", 0.5, True),
        ("True", True, True),
        ("true", True, True),
        (1, True, False),
        ("None", None, False),
        (None, None, True),
        ("²", 2, False),
        ({"b": 1, "a": 2}, {"a": 2, "b": 1}, True),
    ],
)
def test_what_others_give_is_read_as_the_type_that_the_plan_has(given: Any, meant: Any, same: bool) -> None:
    assert says(given, meant) is same


def test_json_data_keeps_its_types() -> None:
    assert json_meaning({"a": [True, 1]}) != json_meaning({"a": [1, True]})


def roles(prefill: str, decode: str, **more: Any) -> dict[str, Any]:
    """Words of ``--prefill-args`` and ``--decode-args``."""
    return {
        "prefill": RoleSpec(args=[typed(*prefill.split())], **more),
        "decode": RoleSpec(args=[typed(*decode.split())], **more),
    }


@pytest.mark.parametrize(
    ("engine", "prefill", "decode"),
    [
        ("vllm", "--block-size 016", "--block-size +16"),
        ("vllm", "--max-model-len 32K", "--max-model-len 32768"),
        ("vllm", "--dtype half", "--dtype float16"),
        ("vllm", "--dtype float32", "--dtype=float"),
        ("vllm", "--attention-backend flash_attn", "--attention-backend FLASH_ATTN"),
        ("vllm", '--speculative-config {"method":"mtp","x":1}', '--speculative-config {"x":1,"method":"mtp"}'),
        ("vllm", "--kv-transfer-config.kv_connector_extra_config.read_mode 1", ""),
        ("sglang", "--context-length 32Ki", "--context-length 32768"),
        ("sglang", "--page-size 064", "--page-size 64"),
        ("sglang", "--speculative-algorithm NEXTN", "--speculative-algorithm EAGLE"),
        ("atom", "--block-size 032", "--block_size 32"),
    ],
)
def test_prefill_and_decode_may_write_one_value_in_two_ways(engine: str, prefill: str, decode: str) -> None:
    PLANNED[engine](**roles(prefill, decode))


@pytest.mark.parametrize(
    ("engine", "prefill", "decode", "said"),
    [
        ("vllm", "--dtype half", "--dtype bfloat16", "dtype is 'half' for prefill-0 .* but 'bfloat16' for decode-0"),
        ("vllm", "--dtype half", "", "dtype is 'half' .* but 'auto' for decode-0 .the engine's own default"),
        ("vllm", "--max-model-len 32k", "--max-model-len 32K", "max-model-len is '32k' .* but '32K'"),
        # The engines compare these two texts themselves: NIXL's hash, SGLang's check of its peer.
        ("vllm", "--kv-cache-dtype fp8", "--kv-cache-dtype fp8_e4m3", "kv-cache-dtype is 'fp8' .* but 'fp8_e4m3'"),
        ("sglang", "--kv-cache-dtype bf16", "--kv-cache-dtype bfloat16", "kv-cache-dtype is 'bf16' .* but 'bfloat16'"),
    ],
)
def test_what_is_not_one_to_the_engine_is_refused_as_it_was_written(
    engine: str, prefill: str, decode: str, said: str
) -> None:
    with pytest.raises(ParityError, match=said):
        PLANNED[engine](**roles(prefill, decode))


def test_a_size_that_the_engine_s_parser_would_refuse_is_refused() -> None:
    with pytest.raises(FlagError, match=r"takes an integer, or one with a suffix: k, M, G, T, Ki, Mi, .*not '32K'"):
        PLANNED["sglang"](**roles("--context-length 32K", "--context-length 32K"))
    with pytest.raises(FlagError, match=r"takes an integer, or one with a suffix: k, K, m, .*not '1\.5K'"):
        PLANNED["vllm"](**roles("--max-model-len 1.5K", "--max-model-len 1.5K"))


@pytest.mark.parametrize(
    ("engine", "words"),
    [
        ("sglang", "--tp-size 08"),
        ("sglang", "--tp-size=+8"),
        ("vllm", "-tp 008"),
        ("atom", "-tp 08"),
    ],
)
def test_an_option_s_value_may_be_said_again_in_another_spelling(engine: str, words: str) -> None:
    PLANNED[engine](args=[typed(*words.split())])


def test_a_port_may_be_said_again_in_another_spelling() -> None:
    def asked(port: str) -> ProcessSpec:
        return ProcessSpec(args=[ArgText(words=["--port", port], source=TYPED)])

    plan(spec(processes={"decode-0": asked("08000")}), host=HOST)
    with pytest.raises(PortError, match=r"says '08001' .* port 8000"):
        plan(spec(processes={"decode-0": asked("08001")}), host=HOST)
