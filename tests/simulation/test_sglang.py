"""SGLang's stand-in: versions, ports, and prefill and decode joined by rooms."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from disagg_run.simulation import text
from disagg_sglang import simulation
from tests.simulation.looking import count, exit_code, listens
from tests.simulation.sglang_argv import MODEL, PORT, QUICK, SERVER, argv, body, through

DATA = Path(__file__).with_name("data")


@pytest.fixture
def pair(start: Callable[..., Any]) -> Callable[..., tuple[Any, Any]]:
    """A prefill and a decode server, ready."""

    def _pair(
        prefill: list[str] | None = None, decode: list[str] | None = None, *, options: tuple[str, ...] = QUICK
    ) -> tuple[Any, Any]:
        servers = (
            start(SERVER, prefill or argv("prefill"), options=options),
            start(SERVER, decode or argv("decode"), options=options),
        )
        for server in servers:
            server.wait_status(PORT, "/health")
        return servers

    return _pair


@pytest.fixture(scope="module")
def usual(start_shared: Callable[..., Any]) -> tuple[Any, Any]:
    """A prefill and a decode server with metrics that several tests ask."""
    metrics = ("--enable-metrics", "--served-model-name", "fake-model")
    servers = tuple(start_shared(SERVER, argv(mode, *metrics), options=QUICK) for mode in ("prefill", "decode"))
    for server in servers:
        server.wait_status(PORT, "/health")
    return servers[0], servers[1]


def lines(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (DATA / name).read_text().splitlines()]


def test_prefill_and_decode_are_joined_by_their_room(usual: tuple[Any, Any]) -> None:
    prefill, decode = usual
    before = count(decode, PORT, "kv_transfers")
    answers = through(prefill, decode, body(prefill, 2439820152725469279))
    assert [answer.status_code for answer in answers] == [200, 200]
    assert answers[1].json()["choices"][0]["text"] == text.answer("hello there", 5)
    assert count(decode, PORT, "kv_transfers") == before + 1


def test_without_a_port_in_the_request_decode_takes_its_own(pair: Callable[..., tuple[Any, Any]]) -> None:
    own = ("--disaggregation-bootstrap-port", "8999")
    prefill, decode = pair(argv("prefill", *own), argv("decode", *own))
    answers = through(prefill, decode, body(prefill, 1, bootstrap_port=None))
    assert [answer.status_code for answer in answers] == [200, 200]


def test_a_request_without_a_room_is_refused(usual: tuple[Any, Any]) -> None:
    for server in usual:
        answer = server.post(PORT, "/v1/completions", {"prompt": "x"})
        assert (answer.status_code, "without bootstrap room" in answer.text) == (400, True)


def test_the_recorded_calls_of_the_router_are_answered(
    usual: tuple[Any, Any], read_events: Callable[[str], list[dict[str, Any]]]
) -> None:
    prefill, decode = usual
    rooms: dict[int, list[dict[str, Any]]] = {}
    for server, name in ((prefill, "sglang-router-to-prefill.jsonl"), (decode, "sglang-router-to-decode.jsonl")):
        for call in lines(name):
            if call["m"] == "GET":
                assert server.status(PORT, call["path"]) == 200, call
            else:
                rooms.setdefault(call["body"]["bootstrap_room"], []).append(call)
    assert len(rooms) == 4
    for calls in rooms.values():
        assert calls[0]["body"] == calls[1]["body"]
        sent = {**calls[0]["body"], "bootstrap_host": prefill.address}
        first, second = through(prefill, decode, sent, calls[0]["path"])
        assert (first.status_code, second.status_code) == (200, 200)
        if sent["stream"]:
            assert read_events(second.text)[-1]["usage"]["completion_tokens"] == 4
        else:
            assert second.json()["usage"]["completion_tokens"] == 4


@pytest.mark.parametrize(
    ("decode", "message"),
    [
        (argv("decode", "--page-size", "64"), "page_size is 64 here and 1 at the prefill server"),
        (argv("decode", "--kv-cache-dtype", "auto"), "kv_cache_dtype is 'auto' here and 'fp8_e4m3' at"),
        (argv("decode", "--dtype", "half"), "dtype is 'float16' here and 'auto' at"),
        (argv("decode", "--dcp-size", "8"), "dcp_size is 8 here and 1 at"),
        (argv("decode", "--pp-size", "2"), "pp_size is 2 here and 1 at"),
        (argv("decode", "--mamba-ssm-dtype", "bfloat16"), "mamba_ssm_dtype is 'bfloat16' here and None at"),
        (argv("decode", "--speculative-algorithm", "NEXTN"), "speculative_algorithm is 'EAGLE' here and None at"),
        (argv("decode", "--speculative-num-steps", "3"), "speculative_num_steps is 3 here and None at"),
        (argv("decode", tp=3), "tp_size 3 here and 8 at the prefill server do not divide"),
    ],
)
def test_a_decode_server_that_does_not_fit_says_why(
    decode: list[str], message: str, usual: tuple[Any, Any], start: Callable[..., Any]
) -> None:
    prefill, _ = usual
    other = start(SERVER, decode, options=QUICK)
    other.wait_status(PORT, "/health")
    answers = through(prefill, other, body(prefill, 7))
    assert [answer.status_code for answer in answers] == [500, 500]
    assert all(message in answer.json()["error"]["message"] for answer in answers)


def test_kv_of_another_dtype_is_garbage_to_an_old_version_too(pair: Callable[..., tuple[Any, Any]]) -> None:
    old = (*QUICK, "--catalogue-version", "0.5.9")
    prefill, decode = pair(argv("prefill"), argv("decode", "--kv-cache-dtype", "auto"), options=old)
    answer = through(prefill, decode, body(prefill, 7))[1]
    assert answer.status_code == 500
    assert "kv_cache_dtype is 'auto' here and 'fp8_e4m3' at" in answer.json()["error"]["message"]


def test_decode_in_one_stage_takes_what_prefill_has_in_several(
    usual: tuple[Any, Any], start: Callable[..., Any]
) -> None:
    prefill = start(SERVER, argv("prefill", "--pp-size", "2", "--served-model-name", "fake-model"), options=QUICK)
    prefill.wait_status(PORT, "/health")
    answers = through(prefill, usual[1], body(prefill, 7))
    assert [answer.status_code for answer in answers] == [200, 200]


def test_decode_says_that_no_bootstrap_server_answers(usual: tuple[Any, Any]) -> None:
    prefill, decode = usual
    answer = decode.post(PORT, "/v1/completions", body(prefill, 7, bootstrap_port=8997))
    assert answer.status_code == 500
    assert f"no answer from the bootstrap server http://{prefill.address}:8997" in answer.json()["error"]["message"]


def test_prefill_gives_up_when_decode_never_comes(start: Callable[..., Any]) -> None:
    prefill = start(SERVER, argv("prefill"), options=(*QUICK, "--peer-timeout-s", "0.2"))
    prefill.wait_status(PORT, "/health")
    answer = prefill.post(PORT, "/v1/completions", body(prefill, 7))
    assert (answer.status_code, "nobody fetched the KV" in answer.text) == (500, True)


@pytest.mark.parametrize(
    ("version", "words", "message"),
    [
        ("0.5.9", ["--attention-backend", "dsv4"], "invalid choice: 'dsv4'"),
        ("0.5.23", ["--cuda-graph-bs", "1", "2"], "ambiguous option: --cuda-graph-bs could match"),
        ("0.5.23", ["--prefill-round-robin-balance"], "unrecognized arguments: --prefill-round-robin-balance"),
        ("", ["--no-such-flag"], "unrecognized arguments: --no-such-flag"),
        ("0.5.20", ["--model-loader-extra-config", "{", "--nonsense"], "unrecognized arguments: --nonsense"),
    ],
)
def test_flags_are_those_of_the_version(
    version: str, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--catalogue-version", version] if version else []
    assert exit_code(simulation.main, [*options, "--", *argv("prefill", *words)]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--nnodes", "2", "--node-rank", "2"], "AssertionError: node_rank 2 is not below nnodes 2"),
        (["--nnodes", "2"], "AssertionError: multi-node serving needs --dist-init-addr"),
        (["--nnodes", "3", "--dist-init-addr", "h:1"], "must be divisible by number of nodes (3)"),
        (["--dist-init-addr", "h"], "ValueError: --dist-init-addr must be host:port"),
        (["--dist-init-addr", "h:²"], "ValueError: --dist-init-addr must be host:port"),
        (["--dp-size", "3", "--enable-dp-attention"], "tp_size (8) must be divisible by dp_size (3)"),
    ],
)
def test_sizes_are_checked_as_the_engine_does(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code(simulation.main, ["--", *argv("prefill", *words)]) == 1
    assert message in capsys.readouterr().err


def test_health_is_503_until_the_warm_up_is_over(start: Callable[..., Any]) -> None:
    server = start(SERVER, argv("prefill"), options=["--load-s", "0", "--slow-start-s", "0.5"])
    server.wait_status(PORT, "/health", 503)
    server.wait_status(PORT, "/health", 200)
    assert "The server is fired up" in server.log


def test_information_tells_the_arguments(start: Callable[..., Any]) -> None:
    server = start(SERVER, argv("decode", "--dp-size", "8", "--enable-dp-attention"), options=QUICK)
    server.wait_status(PORT, "/health_generate")

    def get(path: str) -> Any:
        return server.get(PORT, path).json()

    info = get("/get_server_info")
    assert (info["disaggregation_mode"], info["tp_size"], info["dp_size"]) == ("decode", 8, 8)
    assert get("/model_info")["model_path"] == MODEL
    assert [load["dp_rank"] for load in get("/get_load")] == list(range(8))
    assert get("/v1/models")["data"][0]["id"] == MODEL
    assert server.status(PORT, "/metrics") == 404


# --- ports -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("version", "last"), [("0.5.12", 238), ("0.5.23", 239)])
def test_dp_attention_opens_ports_above_http(version: str, last: int, start: Callable[..., Any]) -> None:
    options = (*QUICK, "--catalogue-version", version)
    server = start(SERVER, argv("decode", "--dp-size", "8", "--enable-dp-attention"), options=options)
    server.wait_status(PORT, "/health")
    opened = [offset for offset in range(1, 260) if listens(server.address, PORT + offset)]
    assert opened == list(range(234, last + 1))


def test_dp_attention_with_an_address_opens_ports_there(start: Callable[..., Any], next_address: Any) -> None:
    address = next_address()
    more = ("--dp-size", "8", "--enable-dp-attention", "--dist-init-addr", f"{address}:20000")
    server = start(SERVER, argv("decode", *more), options=QUICK, address=address)
    server.wait_status(PORT, "/health")
    opened = [offset for offset in range(30) if listens(address, 20000 + offset)]
    assert opened == [0, 1, 2, 3, 4, 5, 6, 13]
    assert not listens(address, PORT + 234)


def test_only_prefill_opens_the_bootstrap_port(usual: tuple[Any, Any]) -> None:
    prefill, decode = usual
    assert (listens(prefill.address, 8998), listens(decode.address, 8998)) == (True, False)


@pytest.mark.parametrize("taken", [8000, 8998, 8234])
def test_a_taken_port_ends_it(taken: int, start: Callable[..., Any], next_address: Any) -> None:
    address = next_address()
    with socket.create_server((address, taken)):
        server = start(
            SERVER, argv("prefill", "--dp-size", "8", "--enable-dp-attention"), options=QUICK, address=address
        )
        assert server.wait_exit() == 1
    assert f"error while attempting to bind on address ('{address}', {taken}): address already in use" in server.log
