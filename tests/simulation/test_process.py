"""Delays and faults, on a stand-in of a toy engine."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import httpx
import pytest

from disagg_run.simulation import text
from disagg_run.simulation.options import Options, parse_options

TOY = Path(__file__).with_name("toy_stand_in.py")
PORT = 8010
ARGV = ["toy-server", "--port", str(PORT)]


@pytest.fixture
def toy(start: Callable[..., Any]) -> Callable[..., Any]:
    def _toy(*options: str, argv: list[str] = ARGV, **more: Any) -> Any:
        return start(TOY, argv, options=["--load-s", "0", *options], **more)

    return _toy


def test_it_answers_as_openai_does(toy: Callable[..., Any], read_events: Callable[[str], list[dict[str, Any]]]) -> None:
    server = toy()
    server.wait_status(PORT, "/health")
    models = server.get(PORT, "/v1/models").json()
    assert [card["id"] for card in models["data"]] == ["toy"]
    whole = server.post(PORT, "/v1/completions", {"prompt": "hello", "max_tokens": 4}).json()
    assert whole["choices"][0]["text"] == text.answer("hello", 4)
    assert whole["model"] == "toy"
    streamed = server.post(PORT, "/v1/completions", {"prompt": "hello", "max_tokens": 4, "stream": True})
    assert streamed.headers["content-type"].startswith("text/event-stream")
    assert "".join(event["choices"][0]["text"] for event in read_events(streamed.text)) == text.answer("hello", 4)
    unknown = server.post(PORT, "/v1/completions", {"model": "other", "prompt": "hello"})
    assert (unknown.status_code, unknown.json()["error"]["type"]) == (404, "NotFoundError")
    long = server.post(PORT, "/v1/completions", {"prompt": [1] * 5000})
    assert (long.status_code, "maximum context length is 4096" in long.json()["error"]["message"]) == (400, True)
    assert server.post(PORT, "/v1/nothing", {}).status_code == 404
    assert '"POST /v1/completions HTTP/1.1" 200' in server.log
    assert f"Uvicorn running on http://{server.address}:{PORT}" in server.log


def test_term_ends_it_cleanly(toy: Callable[..., Any]) -> None:
    server = toy()
    server.wait_status(PORT, "/health")
    server.process.terminate()
    assert server.wait_exit(timeout_s=5) == 0


def test_term_ends_it_while_it_loads(toy: Callable[..., Any]) -> None:
    server = toy("--never-ready")
    with pytest.raises(httpx.TransportError):
        server.post(PORT, "/v1/completions", {"prompt": "x"})
    # The handler is set before the first await of its life; the log says nothing until it has loaded.
    server.wait_for(lambda: _handles_term(server.process.pid), "a handler of SIGTERM")
    server.process.terminate()
    assert server.wait_exit(timeout_s=5) == 0


def _handles_term(pid: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    caught = int(next(line.split()[1] for line in status.splitlines() if line.startswith("SigCgt")), 16)
    return bool(caught >> (signal.SIGTERM - 1) & 1)


def test_term_can_be_ignored(toy: Callable[..., Any]) -> None:
    server = toy("--ignore-term")
    server.wait_status(PORT, "/health")
    server.process.terminate()
    server.wait_log("SIGTERM ignored")
    server.wait_status(PORT, "/health")


def test_a_taken_port_ends_the_second(toy: Callable[..., Any]) -> None:
    first = toy()
    first.wait_status(PORT, "/health")
    second = toy(address=first.address)
    assert second.wait_exit() == 1
    message = f"ERROR:    [Errno 98] error while attempting to bind on address ('{first.address}', {PORT}): "
    assert message + "address already in use" in second.log


def test_an_unknown_flag_ends_it_as_the_parser_would(toy: Callable[..., Any]) -> None:
    server = toy(argv=[*ARGV, "--no-such", "1"])
    assert server.wait_exit() == 2
    assert server.log.splitlines()[-1] == "toy-server: error: unrecognized arguments: --no-such 1"


def test_an_unknown_option_of_the_stand_in_ends_it(toy: Callable[..., Any]) -> None:
    server = toy("--explode")
    assert server.wait_exit() == 2
    assert "toy: error: unrecognized arguments: --explode" in server.log


def test_help_names_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse_options(["--help"], prog="toy", about="Stand-in of a toy.")
    assert ended.value.code == 0
    told = capsys.readouterr().out
    for field in attrs.fields(Options):
        assert f"--{field.name.replace('_', '-')} " in told, field.name


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--load-s", "-1"], "not a time in seconds: '-1'"),
        (["--load-s", "nan"], "not a time in seconds: 'nan'"),
        (["--signal", "NOPE"], "unknown signal 'NOPE'"),
        (["--signal", "²"], "unknown signal '²'"),
        (["--signal", "0"], "unknown signal '0'"),
    ],
)
def test_a_bad_option_is_refused(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_options(words, prog="toy", about="Stand-in of a toy.")
    assert message in capsys.readouterr().err


def test_options_can_come_by_variable(toy: Callable[..., Any]) -> None:
    server = toy("--exit-code", "9", env={"DISAGG_SIMULATION_OPTIONS": "--exit-after-s 0 --exit-code 7"})
    assert server.wait_exit() == 9


def test_it_exits_by_itself(toy: Callable[..., Any]) -> None:
    server = toy("--exit-after-s", "0.1", "--exit-code", "0", "--clock", "ready")
    assert server.wait_exit() == 0
    assert "Uvicorn running" in server.log
    assert "injected fault, the engine exits with code 0" in server.log


def test_it_is_killed_by_a_signal(toy: Callable[..., Any]) -> None:
    assert toy("--signal-after-s", "0.1").wait_exit() == -signal.SIGKILL
    assert toy("--signal-after-s", "0.1", "--signal", "SEGV").wait_exit() == -signal.SIGSEGV


def test_a_wedged_server_accepts_and_says_nothing_but_ends_on_term(toy: Callable[..., Any]) -> None:
    server = toy("--wedge-after-s", "0.3", "--clock", "ready")
    server.wait_log("Uvicorn running")

    def silent() -> bool:
        try:
            server.get(PORT, "/health", timeout=httpx.Timeout(2, read=0.2))
        except httpx.ReadTimeout:
            return True
        return False

    server.wait_for(silent, "no answer")
    server.process.terminate()
    assert server.wait_exit(timeout_s=5) == 0


def test_each_nth_generation_fails(toy: Callable[..., Any]) -> None:
    server = toy("--fail-every", "2")
    server.wait_status(PORT, "/health")
    body = {"prompt": "x", "max_tokens": 1}
    assert [server.post(PORT, "/v1/completions", body).status_code for _ in range(4)] == [200, 500, 200, 500]


def test_delays_are_kept(toy: Callable[..., Any]) -> None:
    server = toy("--ttft-s", "0.2", "--tpot-s", "0.05")
    server.wait_status(PORT, "/health")
    began = time.monotonic()
    body = {"prompt": "x", "max_tokens": 5, "stream": True}
    with server.stream(PORT, "/v1/completions", body) as answer:
        lines = answer.iter_lines()
        assert next(lines).startswith("data: {")
        first = time.monotonic() - began
        assert list(lines)[-2:] == ["data: [DONE]", ""]
    assert first >= 0.2
    assert time.monotonic() - began >= 0.2 + 4 * 0.05


def test_a_client_that_leaves_does_no_harm(toy: Callable[..., Any]) -> None:
    server = toy("--tpot-s", "0.02")
    server.wait_status(PORT, "/health")
    body = {"prompt": "x", "max_tokens": 500, "stream": True, "ignore_eos": True}
    with server.stream(PORT, "/v1/completions", body) as answer:
        assert next(answer.iter_lines()).startswith("data: {")
    server.wait_for(lambda: "standin_clients_gone_total 1" in server.get(PORT, "/metrics").text, "the client's leave")
    assert "Traceback" not in server.log


def test_a_log_flood_does_not_keep_it_from_answering(toy: Callable[..., Any]) -> None:
    server = toy("--log-flood-mb-s", "5")
    server.wait_status(PORT, "/health")
    server.wait_for(lambda: server.log_path.stat().st_size > 500_000, "a megabyte of log")
    server.wait_status(PORT, "/health")
