from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disagg_run.simulation import text
from disagg_run.simulation.generations import Kind, RequestError, chunks, read_generation, whole_answer


def read(kind: Kind = "text", **body: Any) -> Any:
    return read_generation(kind, json.dumps(body).encode(), default_model="m")


def test_a_prompt_has_one_answer() -> None:
    first, second = (whole_answer(read(prompt="hello", max_tokens=5), {}) for _ in range(2))
    assert first["choices"][0]["text"] == second["choices"][0]["text"] == text.answer("hello", 5)


def test_a_longer_answer_begins_with_the_shorter_one() -> None:
    assert text.answer("hello", 9).startswith(text.answer("hello", 5))


def test_other_prompts_have_other_answers() -> None:
    assert len({text.answer(f"prompt {number}", 4) for number in range(200)}) == 200


@pytest.mark.parametrize("kind", ["text", "chat"])
def test_a_streamed_answer_is_the_whole_answer(kind: Kind) -> None:
    prompt = {"prompt": "hello"} if kind == "text" else {"messages": [{"role": "user", "content": "hello"}]}
    generation = read(kind, **prompt, max_tokens=7, stream=True, stream_options={"include_usage": True})
    sent = [chunk for _, chunk in chunks(generation)]
    pieces = [chunk["choices"][0] for chunk in sent if chunk["choices"]]
    streamed = "".join(piece.get("text") or piece.get("delta", {}).get("content", "") for piece in pieces)
    whole = whole_answer(generation, {})
    choice = whole["choices"][0]
    assert streamed == (choice["text"] if kind == "text" else choice["message"]["content"])
    assert [piece["finish_reason"] for piece in pieces] == [None] * (len(pieces) - 1) + ["length"]
    assert sent[-1]["usage"] == whole["usage"]
    assert whole["usage"]["completion_tokens"] == 7


def test_an_answer_ends_by_itself_unless_told_otherwise() -> None:
    natural = text.natural_length("hello")
    assert (read(prompt="hello", max_tokens=5000).tokens, read(prompt="hello").tokens) == (natural, 16)
    assert read(prompt="hello", max_tokens=5000).finish_reason == "stop"
    forced = read(prompt="hello", max_tokens=5000, ignore_eos=True)
    assert (forced.tokens, forced.finish_reason) == (5000, "length")
    assert read("chat", messages=[{"role": "user", "content": "x"}], max_completion_tokens=3).tokens == 3


def test_token_ids_count_as_they_are() -> None:
    assert read(prompt=[5, 6, 7], max_tokens=1).prompt_tokens == 3
    assert read(prompt=[[5, 6, 7]], max_tokens=1).digest == read(prompt=[5, 6, 7], max_tokens=1).digest


def test_several_choices_are_counted_and_echo_repeats_the_prompt() -> None:
    whole = whole_answer(read(prompt="hello", max_tokens=2, n=3, echo=True), {"more": 1})
    assert [choice["text"] for choice in whole["choices"]] == ["hello" + text.answer("hello", 2)] * 3
    assert (whole["usage"]["completion_tokens"], whole["more"]) == (6, 1)


@pytest.mark.parametrize(
    ("kind", "body", "part"),
    [
        ("text", b"{", "no JSON"),
        ("text", b"[]", "no JSON object"),
        ("text", b"{}", "'prompt' must not be empty"),
        ("text", b'{"prompt": "x", "max_tokens": 0}', "'max_tokens' must be an integer of at least 1"),
        ("text", b'{"prompt": "x", "max_tokens": "4"}', "'max_tokens' must be an integer of at least 1"),
        ("text", b'{"prompt": "x", "max_tokens": 9000000, "ignore_eos": true}', "more than a stand-in generates"),
        ("chat", b'{"messages": []}', "'messages' must be a list"),
        ("chat", b'{"prompt": "x"}', "'messages' must be a list"),
    ],
)
def test_a_bad_request_is_refused(kind: Kind, body: bytes, part: str) -> None:
    with pytest.raises(RequestError) as refused:
        read_generation(kind, body)
    assert refused.value.status == 400
    assert part in refused.value.body()["error"]["message"]


_json = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 9) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
_keys = st.sampled_from(
    ["prompt", "messages", "max_tokens", "n", "stream", "stream_options", "echo", "ignore_eos", "min_tokens", "model"]
)


@given(st.dictionaries(_keys, _json), st.sampled_from(["text", "chat"]))
def test_any_body_is_answered_or_refused(body: dict[str, Any], kind: Kind) -> None:
    try:
        generation = read_generation(kind, json.dumps(body).encode())
    except RequestError:
        return
    json.dumps(whole_answer(generation, {}))
    assert sum(tokens for tokens, _ in chunks(generation)) == generation.tokens
