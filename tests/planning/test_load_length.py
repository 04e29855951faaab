"""A load whose requests are longer than the servers take is refused; what nobody asked for is no load."""

from __future__ import annotations

import pytest

from disagg_run import DisaggError, LaunchPlan, plan
from disagg_run.spec.reading import read_spec
from tests.parity.case import host

KIMI = ("vllm-disagg", "Kimi-K2.5-MXFP4")  # its row: 32768
ATOM = ("atom-disagg", "DeepSeek-V4-Pro")
SGLANG = ("sglang-disagg", "DeepSeek-R1-0528")


def planned(of: tuple[str, str], isl: int | None, osl: int | None, **options: object) -> LaunchPlan:
    asked = {"engine": of[0], "model": of[1], "bench.input_len": isl, "bench.output_len": osl, **options}
    given = {name: value for name, value in asked.items() if value is not None}
    return plan(read_spec(options=given, recipe=None, environ={}, host=host()), host=host())


@pytest.mark.parametrize(
    ("of", "isl", "osl", "options", "told"),
    [
        (
            KIMI,
            30000,
            10000,
            {},
            r"30000 \(.*\) and 10000 \(.*\) tokens are longer than the 32768 that prefill-0 takes",
        ),
        (KIMI, 8192, None, {"decode.args": ["--max-model-len 9k"], "waive": ["max-model-len"]}, "9000 that decode-0"),
        (ATOM, 8192, 1024, {"settings": ["max_model_len=4096"]}, r"4096 that prefill-0 takes \(--max-model-len, .*set"),
        (
            SGLANG,
            8192,
            None,
            {"args": ["--context-length 9215"]},
            r"9215 that prefill-0 takes \(--context-length, .*arg",
        ),
    ],
)
def test_requests_beyond_the_context_length_are_refused_with_who_said_so(
    of: tuple[str, str], isl: int, osl: int | None, options: dict[str, object], told: str
) -> None:
    with pytest.raises(DisaggError, match=told):
        planned(of, isl, osl, **options)


@pytest.mark.parametrize(
    ("of", "isl", "osl", "options"),
    [
        (KIMI, 30000, 2768, {}),
        (KIMI, 100000, 1024, {"args": ["--max-model-len -1"]}),
        (ATOM, None, None, {"settings": ["max_model_len=4096"]}),
        (SGLANG, 8192, 1024, {"args": ["--context-length 9216"]}),
        (SGLANG, 10**6, 1024, {}),
    ],
)
def test_a_load_that_fits_or_that_nobody_named_is_planned_and_so_is_a_length_that_only_the_model_knows(
    of: tuple[str, str], isl: int | None, osl: int | None, options: dict[str, object]
) -> None:
    assert planned(of, isl, osl, **options).process("decode-0").argv


def test_the_check_can_be_waived_and_the_plan_says_so() -> None:
    made = planned(KIMI, 30000, 10000, waive=["load-length"])
    assert [remark.source for remark in made.waived] == ["load-length"]
    assert "longer than the 32768" in made.waived[0].message
