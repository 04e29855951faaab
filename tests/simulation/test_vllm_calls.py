"""vLLM's stand-ins answer the calls that the real router was recorded to make, and others as the engine does."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from disagg_run.simulation import text
from tests.simulation.looking import count
from tests.simulation.vllm_argv import PORT, QUICK, SERVER, argv

DATA = Path(__file__).with_name("data")


@pytest.fixture
def pair(start: Callable[..., Any], next_address: Callable[[], str]) -> Callable[..., tuple[Any, Any]]:
    """A producer and a consumer, ready."""

    def _pair(
        producer: list[str], consumer: list[str], *, options: tuple[str, ...] = QUICK, nixl_host: bool = True
    ) -> tuple[Any, Any]:
        servers = []
        for words in (producer, consumer):
            address = next_address()
            env = {"VLLM_NIXL_SIDE_CHANNEL_HOST": address} if nixl_host else {}
            servers.append(start(SERVER, words, options=options, address=address, env=env))
        for server in servers:
            server.wait_status(PORT, "/health")
        return servers[0], servers[1]

    return _pair


@pytest.fixture(scope="module")
def usual(start_shared: Callable[..., Any], next_address: Callable[[], str]) -> tuple[Any, Any]:
    """A producer and a consumer with NIXL that several tests ask."""
    servers = []
    for role in ("producer", "consumer"):
        address = next_address()
        env = {"VLLM_NIXL_SIDE_CHANNEL_HOST": address}
        servers.append(start_shared(SERVER, argv(role, family="nixl"), options=QUICK, address=address, env=env))
    for server in servers:
        server.wait_status(PORT, "/health")
    return servers[0], servers[1]


def moriio(mode: str) -> tuple[list[str], list[str]]:
    """The argv of a pair that uses the ports of the recorded calls."""
    read = mode == "READ"
    return (
        argv("producer", handshake_port=6301, notify_port=61005, read_mode=read),
        argv("consumer", handshake_port=6302, notify_port=61006, read_mode=read),
    )


def post(server: Any, call: Mapping[str, Any], body: Mapping[str, Any], request_id: str) -> httpx.Response:
    """One call as the router makes it; httpx refuses its ``Bearer `` without a key."""
    headers = {"x-request-id": request_id, "authorization": call["headers"]["authorization"]}
    connection = http.client.HTTPConnection(server.address, PORT, timeout=20)
    try:
        connection.request("POST", call["path"], json.dumps(body), {**headers, "content-type": "application/json"})
        answer = connection.getresponse()
        return httpx.Response(answer.status, content=answer.read())
    finally:
        connection.close()


def recorded(kind: str) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """The generation calls of the router, prefill's and decode's with the same request id together."""

    def calls(role: str) -> dict[str, dict[str, Any]]:
        found = [json.loads(line) for line in (DATA / f"vllm-router-{kind}-to-{role}.jsonl").read_text().splitlines()]
        return {call["headers"]["x-request-id"]: call for call in found if "x-request-id" in call.get("headers", {})}

    prefill, decode = calls("prefill"), calls("decode")
    prefill = {request_id: call for request_id, call in prefill.items() if request_id in decode}
    assert len(prefill) == 4
    assert prefill.keys() == decode.keys()
    return [(prefill[request_id], decode[request_id]) for request_id in prefill]


def readdressed(request_id: str, prefill: Any, decode: Any) -> str:
    """A recorded request id with this test's addresses in place of the recorded one's."""
    request_id = request_id.replace("host:127.0.0.1,handshake:6301", f"host:{prefill.address},handshake:6301")
    return request_id.replace("host:127.0.0.1,handshake:6302", f"host:{decode.address},handshake:6302")


def check_answer(call: Mapping[str, Any], answer: httpx.Response, read_events: Callable[[str], Any]) -> None:
    assert answer.status_code == 200, answer.text
    body = call["body"]
    prompt = body.get("prompt") or text.chat_text(body["messages"])
    if not body["stream"]:
        choice = answer.json()["choices"][0]
        said = choice.get("text") or choice["message"]["content"]
    else:
        pieces = [event["choices"][0] for event in read_events(answer.text) if event["choices"]]
        said = "".join(piece.get("text") or piece.get("delta", {}).get("content", "") for piece in pieces)
    assert said == text.answer(prompt, body["max_tokens"])


@pytest.mark.parametrize("kind", ["nixl", "moriio-READ"])
def test_recorded_calls_prefill_then_decode_are_answered(
    kind: str, usual: tuple[Any, Any], pair: Callable[..., tuple[Any, Any]], read_events: Callable[[str], Any]
) -> None:
    prefill, decode = usual if kind == "nixl" else pair(*moriio("READ"))
    before = count(decode, PORT, "kv_transfers")
    for first, second in recorded(kind):
        request_id = readdressed(first["headers"]["x-request-id"], prefill, decode)
        handed = post(prefill, first, first["body"], request_id).json()["kv_transfer_params"]
        # The recorded parameters came from a server that was no engine; the router passes on what prefill says.
        assert set(second["body"]["kv_transfer_params"]) - {"remote_dp_size", "remote_request_id"} <= set(handed)
        params = {**second["body"]["kv_transfer_params"], **handed}
        answer = post(decode, second, {**second["body"], "kv_transfer_params": params}, request_id)
        check_answer(second, answer, read_events)
    assert count(decode, PORT, "kv_transfers") == before + 4


def test_recorded_calls_to_both_at_once_are_answered(
    pair: Callable[..., tuple[Any, Any]], read_events: Callable[[str], Any]
) -> None:
    prefill, decode = pair(*moriio("WRITE"))
    for calls in recorded("moriio-WRITE"):
        request_id = readdressed(calls[0]["headers"]["x-request-id"], prefill, decode)
        with ThreadPoolExecutor(2) as pool:
            sent = [pool.submit(post, prefill, calls[0], calls[0]["body"], request_id)]
            sent.append(pool.submit(post, decode, calls[1], calls[1]["body"], request_id))
            first, second = (answer.result() for answer in sent)
        assert first.status_code == 200
        check_answer(calls[1], second, read_events)
    assert "write failed" not in prefill.log
    assert "standin_kv_transfers_total 4" in decode.get(PORT, "/metrics").text


def test_recorded_calls_with_a_bootstrap_server_are_answered(
    pair: Callable[..., tuple[Any, Any]], read_events: Callable[[str], Any]
) -> None:
    prefill, decode = pair(argv("producer", family="mooncake"), argv("consumer", family="mooncake"))
    entries = prefill.get(8998, "/query").json()
    assert len(entries["0"]["worker_addr"]) == 8
    for first, second in recorded("mooncake"):
        request_id = first["headers"]["x-request-id"]
        answer = post(prefill, first, first["body"], request_id)
        assert answer.status_code == 200
        assert "kv_transfer_params" not in answer.json()
        place = {"remote_bootstrap_addr": prefill.url(8998), "remote_engine_id": entries["0"]["engine_id"]}
        params = {**second["body"]["kv_transfer_params"], **place}
        answer = post(decode, second, {**second["body"], "kv_transfer_params": params}, request_id)
        check_answer(second, answer, read_events)


def test_other_recorded_calls_are_answered_as_the_engine_does(usual: tuple[Any, Any]) -> None:
    prefill, _ = usual
    unknown = {"/health_generate", "/get_server_info", "/get_model_info", "/get_load"}
    for line in (DATA / "vllm-router-nixl-to-prefill.jsonl").read_text().splitlines():
        call = json.loads(line)
        if call["m"] == "GET":
            assert prefill.status(PORT, call["path"]) == (404 if call["path"] in unknown else 200), call
        elif call["path"].endswith("/render"):
            rendered = prefill.post(PORT, call["path"], call["body"]).json()
            assert (rendered[0] if isinstance(rendered, list) else rendered)["token_ids"]
    assert prefill.status(PORT, "/version") == prefill.status(PORT, "/load") == prefill.status(PORT, "/ping") == 200


def ask(server: Any, params: Mapping[str, Any], request_id: str = "", **more: Any) -> httpx.Response:
    body = {"model": "fake-model", "prompt": "hello", "max_tokens": 3, "kv_transfer_params": dict(params), **more}
    call = {"path": "/v1/completions", "headers": {"authorization": "Bearer "}}
    return post(server, call, body, request_id or "plain")


@pytest.mark.parametrize(
    ("producer", "consumer", "message"),
    [
        (
            argv("producer", "--block-size", "16", read_mode=True),
            argv("consumer", "--block-size", "32", read_mode=True),
            "block_size is 32 here and 16 at the prefill server",
        ),
        (
            argv("producer", read_mode=True),
            argv("consumer", tp=3, read_mode=True),
            "tp_size 3 here and 8 at the peer do not divide",
        ),
        (argv("producer", read_mode=True), argv("consumer"), "one reads and the other writes"),
        (
            argv("producer", family="nixl"),
            argv("consumer", "--dtype", "float16", family="nixl"),
            "dtype is 'float16' here and 'auto' at the prefill server",
        ),
    ],
)
def test_a_decode_server_that_does_not_fit_says_why(
    producer: list[str], consumer: list[str], message: str, pair: Callable[..., tuple[Any, Any]]
) -> None:
    prefill, decode = pair(producer, consumer)
    first = ask(prefill, {"do_remote_decode": True, "transfer_id": "t"}, max_tokens=1)
    answer = ask(decode, first.json()["kv_transfer_params"])
    assert (answer.status_code, message in answer.text) == (500, True), answer.text


def test_a_side_channel_on_localhost_is_not_found_by_another_node(pair: Callable[..., tuple[Any, Any]]) -> None:
    """Fault B19: prefill tells ``localhost``, where decode looks on its own node."""
    prefill, decode = pair(argv("producer", family="nixl"), argv("consumer", family="nixl"), nixl_host=False)
    handed = ask(prefill, {"do_remote_decode": True}, max_tokens=1).json()["kv_transfer_params"]
    assert handed["remote_host"] == "localhost"
    answer = ask(decode, handed)
    assert (answer.status_code, "cannot connect to the prefill server at localhost:5600" in answer.text) == (500, True)


def test_without_usable_parameters_decode_computes_the_prompt_itself(usual: tuple[Any, Any]) -> None:
    _, decode = usual
    before = count(decode, PORT, "local_prefills")
    assert ask(decode, {}).status_code == 200
    assert ask(decode, {"do_remote_prefill": True, "remote_engine_id": None}).status_code == 200
    assert "Got invalid KVTransferParams" in decode.log
    assert count(decode, PORT, "local_prefills") == before + 2


def test_a_key_is_asked_for_where_one_is_set(start: Callable[..., Any]) -> None:
    server = start(SERVER, [*argv("producer"), "--api-key", "secret"], options=QUICK)
    server.wait_status(PORT, "/health")
    assert server.status(PORT, "/v1/models") == 401
    found = server.get(PORT, "/v1/models", headers={"authorization": "Bearer secret"})
    assert found.json()["data"][0]["id"] == "fake-model"
