"""The stand-in of atomesh in front of ATOM's: what it joins, waits for and refuses."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

import pytest

from disagg_atom import atomesh_simulation
from disagg_run.simulation import text
from tests.simulation.atom_argv import MODEL, QUICK, SERVER, argv
from tests.simulation.looking import exit_code

ROUTER = "disagg_atom.atomesh_simulation"


def router_argv(prefills: list[Any], decodes: list[Any], *more: str) -> list[str]:
    return [
        *("/usr/local/bin/atomesh", "launch", "--host", "0.0.0.0", "--port", "30000", "--pd-disaggregation"),
        *(word for server in prefills for word in ("--prefill", server.url(8010))),
        *(word for server in decodes for word in ("--decode", server.url(8020))),
        *("--policy", "round_robin", "--backend", "atom", "--log-level", "info", "--prometheus-port", "29100", *more),
        *("--worker-startup-check-interval", "1"),
    ]


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
