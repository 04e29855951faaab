"""Every engine launched by its plan, with stand-ins for the servers and the real routers of PyPI."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import attrs
import httpx
import pytest

from disagg_run import ArgText, LaunchPlan, LaunchSpec, RoleSpec, build_host, plan
from tests.running.launched import Launched

pytestmark = [pytest.mark.real, pytest.mark.usefixtures("this_machine")]

HOST = build_host()
ENGINES = {
    "atom-disagg": "DeepSeek-V4-Pro",
    "sglang-disagg": "DeepSeek-R1-0528",
    "vllm-disagg": "gpt-oss-120b",
}
SHAPES = [(1, 1), (2, 1), (1, 2)]


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Callable[..., Launched]]:
    started: list[Launched] = []

    def start(made: LaunchPlan, **timing: float) -> Launched:
        started.append(Launched(made, tmp_path / f"launch{len(started)}", **timing))
        return started[-1]

    yield start
    for each in started:
        each.stop()


def asked(engine: str, prefill: int = 1, decode: int = 1) -> LaunchSpec:
    return LaunchSpec(
        engine=engine,
        model=ENGINES[engine],
        prefill=RoleSpec(workers=prefill),
        decode=RoleSpec(workers=decode),
        simulate=True,
    )


def said(answer: httpx.Response, *, stream: bool, chat: bool) -> str:
    """The text of a plain or streamed answer."""
    assert answer.status_code == 200, answer.text
    if not stream:
        choice = answer.json()["choices"][0]
        return str(choice["message"]["content"] if chat else choice["text"])
    data = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: ")]
    assert data[-1] == "[DONE]"
    choices = [choice for each in data[:-1] for choice in json.loads(each)["choices"]]
    return "".join((choice["delta"].get("content") or "") if chat else choice["text"] for choice in choices)


@pytest.mark.parametrize(("prefill", "decode"), SHAPES)
@pytest.mark.parametrize("engine", ENGINES)
def test_an_engine_answers_plain_and_streamed_completions_and_chat_through_its_router(
    engine: str, prefill: int, decode: int, launch: Callable[..., Launched]
) -> None:
    made = plan(asked(engine, prefill, decode), host=HOST)
    launched = launch(made)
    url = launched.serving()["url"]
    served = made.model.served_name
    texts = set()
    with httpx.Client(base_url=url, timeout=30) as client:
        for stream in (False, True):
            body = {"model": served, "max_tokens": 8, "stream": stream}
            answer = client.post("/v1/completions", json={**body, "prompt": "Hello there"})
            texts.add(said(answer, stream=stream, chat=False))
            messages = [{"role": "user", "content": "Hello there"}]
            answer = client.post("/v1/chat/completions", json={**body, "messages": messages})
            assert said(answer, stream=stream, chat=True)
    assert len(texts) == 1
    assert texts != {""}
    os.kill(launched.process.pid, signal.SIGINT)
    assert launched.end() == 130


def test_a_flag_that_the_engine_does_not_know_ends_its_stand_in_with_the_engines_own_message(
    launch: Callable[..., Launched],
) -> None:
    # For a version without a catalogue of its own an unknown flag is only a warning: the engine has the last word.
    spec = attrs.evolve(
        asked("sglang-disagg"),
        engine_version="0.5.15",
        args=(ArgText(words=("--no-such-flag", "1")),),
    )
    made = plan(spec, host=HOST)
    assert any("--no-such-flag" in remark.message for remark in made.warnings)
    launched = launch(made)
    assert launched.end() == 11
    shown = launched.err.read_text()
    assert "error: unrecognized arguments: --no-such-flag 1" in shown
    assert "exited with code 2" in shown


#: What cannot be exchanged: flag, its parity value, two sizes, and what the stand-in of decode says of them.
MISMATCHES = {
    "atom-disagg": ("--block-size", "block-size", "block_size is 32 here and 16"),
    "sglang-disagg": ("--page-size", "page-size", "page_size is 32 here and 16"),
    "vllm-disagg": ("--block-size", "block-size", "block_size is 32 here and 16"),
}


@pytest.mark.parametrize("engine", MISMATCHES)
def test_a_mismatch_that_was_waived_is_found_again_by_the_paired_stand_ins(
    engine: str, launch: Callable[..., Launched]
) -> None:
    flag, value, said = MISMATCHES[engine]
    spec = attrs.evolve(
        asked(engine),
        prefill=RoleSpec(workers=1, args=(ArgText(words=(flag, "16")),)),
        decode=RoleSpec(workers=1, args=(ArgText(words=(flag, "32")),)),
        waive=(value,),
    )
    made = plan(spec, host=HOST)
    assert [value in remark.message for remark in made.waived] == [True]
    launched = launch(made, canary_errors_s=2.0)
    assert launched.end(60) == 14
    assert "no generation came through router" in launched.err.read_text()
    assert said in (launched.run_dir / "logs" / "decode-0.log").read_text()
