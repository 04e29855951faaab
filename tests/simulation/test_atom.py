"""ATOM's stand-in with the argv of a public recipe, and a prefill and a decode server behind the stand-in atomesh."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from disagg_atom import atomesh_simulation, simulation
from disagg_run.simulation import text

MODEL = "/models/DeepSeek-V4-Pro"
SERVER = "disagg_atom.simulation"
ROUTER = "disagg_atom.atomesh_simulation"
PORT = {"kv_producer": 8010, "kv_consumer": 8020}
QUICK = ("--load-s", "0", "--ttft-s", "0", "--tpot-s", "0")


def argv(role: str, *more: str, tp: int = 8, block: int = 16, handshake: int = 6301, model: str = MODEL) -> list[str]:
    config = {"kv_role": role, "kv_connector": "mooncake", "proxy_ip": "10.0.0.1", "handshake_port": handshake}
    return [
        *("python3", "-m", "atom.entrypoints.openai_server", "--model", model, "--host", "0.0.0.0"),
        *("--server-port", str(PORT[role]), "--trust-remote-code", "-tp", str(tp)),
        *("--kv_cache_dtype", "fp8", "--block-size", str(block), "--gpu-memory-utilization", "0.85"),
        *("--max-num-seqs", "256", "--no-enable_prefix_caching", "--kv-transfer-config", json.dumps(config), *more),
    ]


def router_argv(prefills: list[Any], decodes: list[Any], *more: str) -> list[str]:
    return [
        *("/usr/local/bin/atomesh", "launch", "--host", "0.0.0.0", "--port", "30000", "--pd-disaggregation"),
        *(word for server in prefills for word in ("--prefill", server.url(8010))),
        *(word for server in decodes for word in ("--decode", server.url(8020))),
        *("--policy", "round_robin", "--backend", "atom", "--log-level", "info", "--prometheus-port", "29100", *more),
        *("--worker-startup-check-interval", "1"),
    ]


@pytest.fixture
def pair(start: Callable[..., Any]) -> Callable[..., tuple[Any, Any]]:
    """A prefill and a decode server, ready."""

    def _pair(prefill: list[str] | None = None, decode: list[str] | None = None) -> tuple[Any, Any]:
        one = start(SERVER, prefill or argv("kv_producer"), options=QUICK)
        two = start(SERVER, decode or argv("kv_consumer"), options=QUICK)
        one.wait_status(8010, "/health")
        two.wait_status(8020, "/health")
        return one, two

    return _pair


@pytest.fixture(scope="module")
def usual(start_shared: Callable[..., Any]) -> tuple[Any, Any]:
    """A prefill and a decode server that several tests ask."""
    prefill = start_shared(SERVER, argv("kv_producer"), options=QUICK)
    decode = start_shared(SERVER, argv("kv_consumer"), options=QUICK)
    prefill.wait_status(8010, "/health")
    decode.wait_status(8020, "/health")
    return prefill, decode


def exit_code(main: Callable[[list[str]], int], words: list[str]) -> int:
    """The exit code of a stand-in that ends before it starts anything."""
    try:
        return main(words)
    except SystemExit as ended:
        return int(ended.code or 0)


def transfers(decode: Any) -> int:
    """How many requests a decode server has taken over from a prefill server."""
    counts = dict(line.split() for line in decode.get(8020, "/metrics").text.splitlines())
    return int(counts.get("standin_kv_transfers_total", 0))


def through(prefill: Any, decode: Any, prompt: str = "hello there") -> httpx.Response:
    """One request as the router sends it: prefill, then decode with what prefill returned."""
    body = {"model": MODEL, "prompt": prompt}
    first = prefill.post(
        8010, "/v1/completions", {**body, "max_tokens": 1, "kv_transfer_params": {"do_remote_decode": True}}
    ).json()
    handed = first["kv_transfer_params"]
    answer: httpx.Response = decode.post(
        8020, "/v1/completions", {**body, "max_tokens": 5, "kv_transfer_params": handed}
    )
    return answer


def test_decode_continues_what_prefill_began(usual: tuple[Any, Any]) -> None:
    prefill, decode = usual
    before = transfers(decode)
    answer = through(prefill, decode)
    assert answer.json()["choices"][0]["text"] == text.answer("hello there", 5)
    assert transfers(decode) == before + 1


def test_the_model_is_called_as_typed_or_as_told(pair: Callable[..., tuple[Any, Any]]) -> None:
    prefill, decode = pair(argv("kv_producer", "--served-model-name", "short"))
    names = [
        server.get(port, "/v1/models").json()["data"][0]["id"] for server, port in ((prefill, 8010), (decode, 8020))
    ]
    assert names == ["short", MODEL]


def test_http_is_refused_until_the_model_is_loaded(start: Callable[..., Any]) -> None:
    server = start(SERVER, argv("kv_producer"), options=["--never-ready"])
    server.wait_log(f"loading {MODEL} as prefill")
    with pytest.raises(httpx.ConnectError):
        server.get(8010, "/health")


def listens(address: str, port: int) -> bool:
    with socket.socket() as client:
        client.settimeout(2)
        return client.connect_ex((address, port)) == 0


def test_only_a_producer_listens_for_handshakes_one_port_a_worker_process(
    pair: Callable[..., tuple[Any, Any]],
) -> None:
    prefill, decode = pair(argv("kv_producer", "-pp", "2", tp=4), argv("kv_consumer", tp=4))
    assert [listens(prefill.address, port) for port in range(6301, 6310)] == [True] * 8 + [False]
    assert not listens(decode.address, 6301)


def test_data_parallel_ranks_meet_on_a_port(pair: Callable[..., tuple[Any, Any]]) -> None:
    with_attention, without = pair(argv("kv_producer", "--enable-dp-attention"))
    assert (listens(with_attention.address, 29500), listens(without.address, 29500)) == (True, False)
    assert [listens(with_attention.address, port) for port in (6308, 6309)] == [True, False]
    assert not listens(without.address, 8006)


@pytest.mark.parametrize(
    ("taken", "message"),
    [
        (8010, "ERROR:    [Errno 98] error while attempting to bind on address"),
        (6303, "zmq.error.ZMQError: Address already in use (addr='tcp://*:6303')"),
        (29500, "torch.distributed.DistNetworkError: The server socket has failed to listen"),
    ],
)
def test_a_taken_port_ends_it(taken: int, message: str, start: Callable[..., Any], next_address: Any) -> None:
    address = next_address()
    with socket.create_server((address, taken)):
        server = start(SERVER, argv("kv_producer", "--enable-dp-attention"), options=QUICK, address=address)
        assert server.wait_exit() == 1
    assert message in server.log


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["--enable-dp-attn"], 2, "unrecognized arguments: --enable-dp-attn"),
        (["--kv_cache_dtype", "fp4"], 2, "argument --kv_cache_dtype/--kv-cache-dtype: invalid choice: 'fp4'"),
        (["--online_quant_config", "{a:1}"], 2, "invalid loads value: '{a:1}'"),
        (["--kv-transfer-config", "{kv_role:x}"], 1, "json.decoder.JSONDecodeError: "),
        (["--kv-transfer-config", '{"kv_role": "x"}'], 1, "ValueError: kv_role must be one of"),
        (["--cudagraph-capture-sizes", "1 2"], 1, "json.decoder.JSONDecodeError: "),
        (["stray"], 2, "unrecognized arguments: stray"),
    ],
)
def test_a_bad_argument_ends_it_as_the_engine(
    words: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code(simulation.main, ["--", *argv("kv_producer", *words)]) == code
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("decode", "message"),
    [
        (argv("kv_consumer", block=32), "block_size is 32 here and 16 at the prefill server"),
        (argv("kv_consumer", "--kv_cache_dtype", "bf16"), "kv_cache_dtype is 'bf16' here and 'fp8' at"),
        (argv("kv_consumer", tp=3), "3 ranks here and 8 at the prefill server do not divide"),
    ],
)
def test_a_decode_server_that_does_not_fit_says_why(
    decode: list[str], message: str, usual: tuple[Any, Any], start: Callable[..., Any]
) -> None:
    prefill, _ = usual
    other = start(SERVER, decode, options=QUICK)
    other.wait_status(8020, "/health")
    answer = through(prefill, other)
    assert answer.status_code == 500
    assert message in answer.json()["error"]["message"]
    assert "KV transfer failed" in other.log


def test_roles_with_different_tp_that_divides_work_together(usual: tuple[Any, Any], start: Callable[..., Any]) -> None:
    prefill = start(SERVER, argv("kv_producer", tp=4), options=QUICK)
    prefill.wait_status(8010, "/health")
    assert through(prefill, usual[1]).status_code == 200


def test_decode_says_that_its_prefill_server_is_gone(pair: Callable[..., tuple[Any, Any]]) -> None:
    prefill, decode = pair()
    body = {"prompt": "x", "max_tokens": 1, "kv_transfer_params": {"do_remote_decode": True}}
    handed = prefill.post(8010, "/v1/completions", body).json()["kv_transfer_params"]
    prefill.end()
    answer = decode.post(8020, "/v1/completions", {"prompt": "x", "kv_transfer_params": handed})
    assert answer.status_code == 500
    assert f"cannot connect to the prefill server at {prefill.address}:6301" in answer.json()["error"]["message"]


def test_kv_of_another_prompt_and_roles_mixed_up_are_refused(usual: tuple[Any, Any]) -> None:
    prefill, decode = usual
    ask = {"prompt": "x", "max_tokens": 1, "kv_transfer_params": {"do_remote_decode": True}}
    handed = prefill.post(8010, "/v1/completions", ask).json()["kv_transfer_params"]
    other = decode.post(8020, "/v1/completions", {"prompt": "another", "kv_transfer_params": handed})
    assert "belongs to another prompt" in other.json()["error"]["message"]
    assert decode.post(8020, "/v1/completions", ask).status_code == 400
    assert prefill.post(8010, "/v1/completions", {**ask, "kv_transfer_params": handed}).status_code == 400
    garbled = decode.post(8020, "/v1/completions", {"prompt": "x", "kv_transfer_params": {"do_remote_prefill": True}})
    assert garbled.status_code == 400
    assert decode.post(8020, "/v1/completions", {"prompt": "x", "kv_transfer_params": [1]}).status_code == 400


def test_the_router_joins_prefill_and_decode(
    start: Callable[..., Any], read_events: Callable[[str], list[dict[str, Any]]]
) -> None:
    prefills = [start(SERVER, argv("kv_producer"), options=QUICK) for _ in range(2)]
    decode = start(SERVER, argv("kv_consumer"), options=QUICK)
    router = start(ROUTER, router_argv(prefills, [decode]))
    router.wait_status(30000, "/v1/models")
    assert (router.status(30000, "/health"), router.status(30000, "/readiness")) == (200, 200)
    body = {"model": MODEL, "prompt": "hello there", "max_tokens": 5}
    for _ in range(4):
        plain = router.post(30000, "/v1/completions", body).json()
        assert plain["choices"][0]["text"] == text.answer("hello there", 5)
    streamed = router.post(
        30000, "/v1/completions", {**body, "stream": True, "stream_options": {"include_usage": True}}
    )
    sent = read_events(streamed.text)
    assert "".join(event["choices"][0]["text"] for event in sent[:-1]) == text.answer("hello there", 5)
    assert sent[-1]["usage"]["completion_tokens"] == 5
    messages = [{"role": "user", "content": "hi"}]
    chat = router.post(30000, "/v1/chat/completions", {"model": MODEL, "messages": messages, "max_tokens": 3}).json()
    assert chat["choices"][0]["message"]["content"] == text.answer(text.chat_text(messages), 3)
    counts = [server.get(8010, "/metrics").text for server in prefills]
    assert counts == ["standin_generations_total 3\n"] * 2
    refused = router.post(30000, "/v1/completions", {**body, "model": "other"})
    assert (refused.status_code, refused.json()["error"]["type"]) == (404, "NotFoundError")


def test_the_router_binds_only_when_all_workers_are_there(start: Callable[..., Any]) -> None:
    prefill = start(SERVER, argv("kv_producer"), options=QUICK)
    decode = start(SERVER, argv("kv_consumer"), options=["--never-ready"])
    router = start(ROUTER, router_argv([prefill], [decode]))
    router.wait_log(f"waiting for 1 workers: {decode.url(8020)}")
    assert router.status(30000, "/health") is None
    assert router.status(29100, "/metrics") == 200


def test_the_router_gives_up_waiting_and_serves_without_workers(start: Callable[..., Any]) -> None:
    decode = start(SERVER, argv("kv_consumer"), options=["--never-ready"])
    words = router_argv([decode], [decode], "--worker-startup-timeout-secs", "0")
    router = start(ROUTER, words, options=["--startup-grace-s", "0.3"])
    router.wait_status(30000, "/health")
    assert "gave up waiting for" in router.log
    assert [router.status(30000, path) for path in ("/liveness", "/readiness", "/v1/models")] == [200, 503, 503]
    assert router.post(30000, "/v1/completions", {"prompt": "x"}).status_code == 503


@pytest.mark.parametrize("host", [(), ("--host", "[::]")], ids=["IPv4", "IPv6"])
def test_readiness_means_nothing_without_health_checks(start: Callable[..., Any], host: tuple[str, ...]) -> None:
    words = ["atomesh", "launch", "--port", "30000", "--prometheus-port", "29100", "--disable-health-check"]
    router = start(ROUTER, [*words, *host])
    router.wait_status(30000, "/readiness")
    assert router.status(30000, "/v1/models") == 503


@pytest.mark.real
def test_the_router_answers_502_then_503_when_a_worker_died(start: Callable[..., Any]) -> None:
    prefill = start(SERVER, argv("kv_producer"), options=QUICK)
    decode = start(SERVER, argv("kv_consumer"), options=QUICK)
    checks = ("--disable-retries", "--health-check-interval-secs", "1", "--health-failure-threshold", "2")
    router = start(ROUTER, router_argv([prefill], [decode], *checks))
    router.wait_status(30000, "/readiness")
    decode.end()
    dead = router.post(30000, "/v1/completions", {"prompt": "x"})
    assert (dead.status_code, decode.url(8020) in dead.text) == (502, True)
    router.wait_status(30000, "/readiness", 503)
    assert router.post(30000, "/v1/completions", {"prompt": "x"}).status_code == 503
    assert router.status(30000, "/health") == 200


def test_the_router_ends_without_a_traceback_while_it_still_tries(start: Callable[..., Any]) -> None:
    """Its retries must not outlive what they send requests with."""
    prefill = start(SERVER, argv("kv_producer"), options=QUICK)
    decode = start(SERVER, argv("kv_consumer"), options=QUICK)
    retries = ("--retry-max-retries", "10000", "--retry-initial-backoff-ms", "5", "--retry-max-backoff-ms", "5")
    words = router_argv([prefill], [decode], "--disable-health-check", "--disable-circuit-breaker", *retries)
    router = start(ROUTER, words)
    router.wait_status(30000, "/v1/models")
    decode.end()
    with socket.create_connection((router.address, 30000)) as client:
        body = b'{"prompt": "x"}'
        client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: r\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        router.wait_log(f"ERROR atomesh: decode worker {decode.url(8020)}")
        router.process.terminate()
        assert router.wait_exit() == 0
    assert "Traceback" not in router.log
    assert "Session is closed" not in router.log


def test_a_taken_prometheus_port_is_a_panic(start: Callable[..., Any], next_address: Any) -> None:
    address = next_address()
    with socket.create_server((address, 29100)):
        router = start(ROUTER, ["atomesh", "launch", "--prometheus-port", "29100"], address=address)
        assert router.wait_exit() == 101
    assert "panicked at 'failed to install Prometheus" in router.log


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--policy", "consistent_hashing"], "error: invalid value 'consistent_hashing' for '--policy <VALUE>'"),
        (["--pd-disagg"], "error: unexpected argument '--pd-disagg' found"),
        (["--backend", "none"], "error: invalid value 'none' for '--backend <BACKEND>'"),
    ],
)
def test_the_router_refuses_flags_as_clap_does(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code(atomesh_simulation.main, ["--", "atomesh", "launch", *words]) == 2
    assert message in capsys.readouterr().err
