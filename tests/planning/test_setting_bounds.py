"""Bounds of settings hold for the flags that they become."""

from __future__ import annotations

import pytest

from disagg_run import FlagError, LaunchPlan, plan
from disagg_run.spec.reading import read_spec
from tests.parity.case import host


def planned(engine: str, words: str) -> LaunchPlan:
    options = {"engine": engine, "model": "Kimi-K2.5-MXFP4", "args": [words]}
    return plan(read_spec(options=options, recipe=None, environ={}, host=host()), host=host())


@pytest.mark.parametrize("engine", ["vllm-disagg", "atom-disagg"])
@pytest.mark.parametrize(
    ("words", "bounds"),
    [
        ("--gpu-memory-utilization 9", "at least 0 and at most 1 is allowed"),
        ("--gpu-memory-utilization=-0.1", "at least 0 and at most 1 is allowed"),
        ("--gpu-memory-utilization nan", "at least 0 and at most 1 is allowed"),
        ("--gpu-memory-utilization inf", "at least 0 and at most 1 is allowed"),
        ("--max-num-seqs 0", "at least 1 is allowed"),
    ],
)
def test_a_flag_beyond_the_bounds_of_its_setting_is_refused(engine: str, words: str, bounds: str) -> None:
    with pytest.raises(FlagError, match=rf"prefill: --[a-z-]+ is \S+ \(.*\), but {bounds}: it is the setting [a-z_]+"):
        planned(engine, words)


def test_a_negative_block_size_is_refused() -> None:
    with pytest.raises(FlagError, match=r"--block-size is -5 .*, but at least 1 is allowed"):
        planned("atom-disagg", "--block-size -5")


@pytest.mark.parametrize("engine", ["vllm-disagg", "atom-disagg"])
@pytest.mark.parametrize("words", ["--gpu-memory-utilization 1", "--max-num-seqs 1"])
def test_a_flag_at_the_bound_is_planned(engine: str, words: str) -> None:
    name, value = words.split()
    argv = planned(engine, words).process("decode-0").argv
    assert argv[argv.index(name) + 1] == value
