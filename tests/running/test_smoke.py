"""The smoke test's reading of streams, its percentiles, and what it refuses."""

from __future__ import annotations

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disagg_run.errors import WorkloadError
from disagg_run.running.smoke import Answer, SmokeResult, _Stream, check, percentile


def read(*lines: str) -> Answer:
    ticks = iter(range(1000))
    stream = _Stream(lambda: float(next(ticks)))
    for line in lines:
        stream.line(line)
    return stream.answer("")


def token(text: str) -> str:
    return f'data: {{"choices": [{{"text": "{text}"}}]}}'


def test_tokens_are_timed_from_the_first_to_the_last_and_counted() -> None:
    answer = read(token("a"), "", ": comment", token("b"), token("c"), "data: [DONE]")
    assert answer == Answer(first_s=1.0, rest_s=2.0, tokens=3)


def test_the_servers_own_count_wins_over_that_of_chunks() -> None:
    answer = read(token("a"), token("bcd"), 'data: {"choices": [], "usage": {"completion_tokens": 7}}', "data: [DONE]")
    assert answer.tokens == 7
    assert answer.problem == ""


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        ([], "no token came"),
        (["data: [DONE]"], "no token came"),
        ([token("a")], "the stream ended before [DONE]"),
        ([token("a"), "data: {broken", "data: [DONE]"], "a chunk is no JSON: '{broken'"),
        (['data: {"error": {"message": "decode is gone"}}', "data: [DONE]"], "the stream holds an error"),
    ],
)
def test_a_stream_that_is_no_answer_is_a_failed_request(lines: list[str], problem: str) -> None:
    assert read(*lines).problem.startswith(problem)


def test_no_more_requests_are_told_to_run_at_a_time_than_there_are() -> None:
    one = Answer(first_s=1, rest_s=1, tokens=2)
    assert "4 of 4 requests good, 4 at a time" in SmokeResult(answers=[one] * 4, duration_s=1).table()
    assert "9 of 9 requests good, 8 at a time" in SmokeResult(answers=[one] * 9, duration_s=1).table()


def test_one_failed_request_fails_the_run_and_is_named() -> None:
    good = Answer(first_s=1, rest_s=1, tokens=2)
    bad = Answer(first_s=0, rest_s=0, tokens=0, problem="http://r/v1/completions answers 502 (no decode)")
    check(SmokeResult(answers=[good], duration_s=1))
    with pytest.raises(WorkloadError, match=r"1 of 2 smoke requests failed; the first: .*502"):
        check(SmokeResult(answers=[good, bad], duration_s=1))
    assert "1 of 2 requests good, 2 at a time" in SmokeResult(answers=[good, bad], duration_s=1).table()


def test_figures_count_good_requests_alone() -> None:
    answers = [Answer(first_s=0.1, rest_s=0.9, tokens=10), Answer(first_s=9, rest_s=9, tokens=9, problem="x")]
    result = SmokeResult(answers=answers, duration_s=2.0)
    assert result.throughput() == (5.0, 0.5)
    assert result.figures()["time per output token"]["p50"] == pytest.approx(100.0)
    assert result.figures()["time to first token"]["p99"] == pytest.approx(100.0)


@given(st.lists(st.floats(0, 1e6), min_size=2, max_size=50))
def test_percentiles_are_those_of_the_standard_library(values: list[float]) -> None:
    cuts = statistics.quantiles(values, n=100, method="inclusive")
    for percent in (50, 90, 99):
        assert percentile(values, percent) == pytest.approx(cuts[percent - 1], abs=1e-6)
