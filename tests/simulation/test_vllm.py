"""vLLM's stand-in: connectors, registration in both generations, ports, and workers over nodes."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import msgpack  # type: ignore[import-untyped]
import psutil
import pytest
import zmq
from hypothesis import given
from hypothesis import strategies as st

from disagg_run.simulation import text
from disagg_run.simulation.arguments import build_parser, read_catalogue
from disagg_run.simulation.process import Died
from disagg_vllm import simulation
from disagg_vllm.simulation_registration import frame, pack, registers
from disagg_vllm.simulation_settings import Settings, read_settings

SERVER = "disagg_vllm.simulation"
PORT = 2584
MODEL = "/models/Kimi"
QUICK = ("--load-s", "0", "--ttft-s", "0", "--tpot-s", "0", "--peer-timeout-s", "5")
DATA = Path(__file__).with_name("data")
CATALOGUE = Path(simulation.__file__).parent / "catalogues" / "vllm-serve-0.32.0.json"
CONNECTORS = {"moriio": "MoRIIOConnector", "nixl": "NixlConnector", "mooncake": "MooncakeConnector"}


def argv(role: str, *more: str, family: str = "moriio", tp: int = 8, **extra: Any) -> list[str]:
    if family == "moriio":
        extra = {"http_port": str(PORT), **extra}
    config = {"kv_connector": CONNECTORS[family], "kv_role": f"kv_{role}", "kv_connector_extra_config": extra}
    return [
        *("vllm", "serve", MODEL, "--served-model-name", "fake-model", "--port", str(PORT), "--trust-remote-code"),
        *("--kv-transfer-config", json.dumps(config), "--tensor-parallel-size", str(tp), "--kv-cache-dtype", "fp8"),
        *more,
    ]


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


def count(server: Any, name: str) -> int:
    """One of the stand-in's counters."""
    counts = dict(line.split() for line in server.get(PORT, "/metrics").text.splitlines())
    return int(counts.get(f"standin_{name}_total", 0))


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
    before = count(decode, "kv_transfers")
    for first, second in recorded(kind):
        request_id = readdressed(first["headers"]["x-request-id"], prefill, decode)
        handed = post(prefill, first, first["body"], request_id).json()["kv_transfer_params"]
        # The recorded parameters came from a server that was no engine; the router passes on what prefill says.
        assert set(second["body"]["kv_transfer_params"]) - {"remote_dp_size", "remote_request_id"} <= set(handed)
        params = {**second["body"]["kv_transfer_params"], **handed}
        answer = post(decode, second, {**second["body"], "kv_transfer_params": params}, request_id)
        check_answer(second, answer, read_events)
    assert count(decode, "kv_transfers") == before + 4


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
    before = count(decode, "local_prefills")
    assert ask(decode, {}).status_code == 200
    assert ask(decode, {"do_remote_prefill": True, "remote_engine_id": None}).status_code == 200
    assert "Got invalid KVTransferParams" in decode.log
    assert count(decode, "local_prefills") == before + 2


def test_a_key_is_asked_for_where_one_is_set(start: Callable[..., Any]) -> None:
    server = start(SERVER, [*argv("producer"), "--api-key", "secret"], options=QUICK)
    server.wait_status(PORT, "/health")
    assert server.status(PORT, "/v1/models") == 401
    found = server.get(PORT, "/v1/models", headers={"authorization": "Bearer secret"})
    assert found.json()["data"][0]["id"] == "fake-model"


# --- arguments ---------------------------------------------------------------------------------------------------


def exit_code(words: list[str]) -> int:
    """The exit code of a stand-in that ends before it starts anything."""
    try:
        return simulation.main(words)
    except SystemExit as ended:
        return int(ended.code or 0)


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["--enable-dp-attention"], 2, "vllm serve: error: unrecognized arguments: --enable-dp-attention"),
        (["--kv-transfer-config", "{broken"], 2, "argument --kv-transfer-config: invalid _optional_type value"),
        (["--kv-cache-dtype", "fp3"], 2, "argument --kv-cache-dtype: invalid choice: 'fp3'"),
        (["--kv-transfer-config", '{"kv_role": "x"}'], 1, "ValueError: Unsupported kv_role: x"),
        (["--kv-transfer-config", '{"kv_connector": "MoRIIO", "kv_role": "kv_both"}'], 1, "Unsupported connector type"),
        (["--kv-transfer-config", '{"kv_connector": "MoRIIOConnector"}'], 1, "kv_connector is set without kv_role"),
        (
            ["--kv-transfer-config", '{"kv_connector": "MoRIIOConnector", "kv_role": "kv_both"}'],
            1,
            "KeyError: 'http_port'",
        ),
    ],
)
def test_a_bad_argument_ends_it_as_the_engine(
    words: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code(["--", *argv("producer"), *words]) == code
    assert message in capsys.readouterr().err


def test_another_program_is_not_found(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code(["--", "vllm", "bench", "serve"]) == 127
    assert "expected vllm serve" in capsys.readouterr().err


def settings(words: list[str], version: str = "0.32.0", **environ: str) -> Settings:
    parser = build_parser(read_catalogue(CATALOGUE), prog="vllm serve")
    return read_settings(parser.parse_args(words[2:]), environ, version)


def test_underscores_count_as_dashes() -> None:
    found = settings([*argv("producer"), "--tensor_parallel_size=4", "--max-num-batched-tokens", "4K"])
    assert found.tp == 4


@pytest.mark.parametrize(
    ("version", "key", "variable", "reads"),
    [
        ("0.22.1", True, "0", False),
        ("0.22.1", False, "1", True),
        ("0.23.0", True, "0", True),
        ("0.23.0", False, "1", False),
        ("0.32.0", "true", "0", True),
    ],
)
def test_read_mode_is_set_by_the_key_or_by_the_variable(version: str, key: Any, variable: str, reads: bool) -> None:
    words = argv("producer", read_mode=key, proxy_ip="h", proxy_ping_port=1)
    found = settings(words, version, VLLM_MORIIO_CONNECTOR_READ_MODE=variable)
    assert found.reads is reads
    assert bool(found.warnings) is (version != "0.22.1")


def test_an_unknown_backend_is_refused() -> None:
    with pytest.raises(Died, match="Invalid MoRIIO backend 'tcp'"):
        settings(argv("producer", backend="tcp"))


# --- ports and nodes ---------------------------------------------------------------------------------------------


def listens(address: str, port: int) -> bool:
    with socket.socket() as client:
        client.settimeout(2)
        return client.connect_ex((address, port)) == 0


def test_each_rank_listens_for_handshakes_and_notices(start: Callable[..., Any]) -> None:
    server = start(SERVER, argv("consumer", tp=4), options=QUICK)
    server.wait_status(PORT, "/health")
    assert [port for port in range(6295, 6310) if listens(server.address, port)] == [6301, 6302, 6303, 6304]
    assert [port for port in range(61000, 61012) if listens(server.address, port)] == [61005, 61006, 61007, 61008]


def test_dp_times_tp_ranks_collide(start: Callable[..., Any]) -> None:
    server = start(SERVER, argv("consumer", "--data-parallel-size", "2", tp=2), options=QUICK)
    assert server.wait_exit() == 1
    assert "zmq.error.ZMQError: Address already in use (addr='tcp://0.0.0.0:6302')" in server.log


def test_dp_ranks_count_in_ports_from_the_node_or_from_the_worker() -> None:
    words = [*argv("producer", tp=1, proxy_ip="h", proxy_ping_port=1), "--data-parallel-size", "4"]
    second = [*words, "--data-parallel-size-local", "2", "--data-parallel-start-rank", "2"]
    assert settings(second, "0.27.1").moriio_ports("handshake") == [6303, 6304]
    assert settings(second, "0.28.0").moriio_ports("handshake") == [6301, 6302]
    assert (registers(settings(words)), registers(settings(second))) == (True, False)


@pytest.mark.parametrize("taken", [2584, 5601, 29501])
def test_a_taken_port_ends_it(taken: int, start: Callable[..., Any], next_address: Any) -> None:
    address = next_address()
    more = ["--data-parallel-size", "2"] if taken == 5601 else ["--nnodes", "2", "--master-addr", address]
    env = {"VLLM_NIXL_SIDE_CHANNEL_HOST": address}
    with socket.create_server((address, taken)):
        words = [*argv("producer", family="nixl", tp=2), *more]
        server = start(SERVER, words, options=QUICK, address=address, env=env)
        assert server.wait_exit() == 1
    assert "address already in use" in server.log.lower()


def test_http_is_bound_before_the_model_is_loaded_and_listens_after(start: Callable[..., Any]) -> None:
    server = start(SERVER, argv("producer"), options=["--load-s", "0.7"])
    server.wait_log("as prefill")
    with pytest.raises(httpx.ConnectError):
        server.get(PORT, "/health")
    assert "Starting vLLM server on http://" not in server.log
    server.wait_status(PORT, "/health")
    assert f"Starting vLLM server on http://0.0.0.0:{PORT}" in server.log


def test_a_headless_node_joins_and_serves_no_http(start: Callable[..., Any], next_address: Any) -> None:
    address = next_address()
    words = [*argv("consumer", family="nixl", tp=16), "--nnodes", "2", "--master-addr", address, "--node-rank"]
    follower = start(SERVER, [*words, "1", "--headless"], options=QUICK)
    head = start(SERVER, [*words, "0"], options=QUICK, address=address)
    head.wait_status(PORT, "/health")
    assert follower.process.poll() is None
    assert follower.status(PORT, "/health") is None
    head.end()
    follower.wait_log(f"connection to the head at {address}:29501 is lost")
    assert follower.process.poll() is None


def test_data_parallel_nodes_meet_and_each_serves(start: Callable[..., Any], next_address: Any) -> None:
    address = next_address()
    words = [*argv("consumer", family="nixl", tp=1), "--data-parallel-size", "4", "--data-parallel-size-local", "2"]
    words += ["--data-parallel-address", address, "--data-parallel-start-rank"]
    second = start(SERVER, [*words, "2"], options=QUICK)
    first = start(SERVER, [*words, "0"], options=QUICK, address=address)
    first.wait_status(PORT, "/health")
    second.wait_status(PORT, "/health")


# --- registration ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        (
            "0.20.0",
            {
                "type": "P",
                "http_address": "10.0.0.7:2584",
                "zmq_address": "host:10.0.0.7,handshake:6301,notify:61005",
                "dp_size": 1,
                "tp_size": 8,
                "transfer_mode": "WRITE",
            },
        ),
        (
            "0.19.1",
            {
                "type": "register",
                "role": "P",
                "index": "3",
                "request_address": "http://10.0.0.7:2584/v1/completions",
                "handshake_port": 6301,
                "notify_port": 61005,
                "dp_size": 1,
                "tp_size": 8,
                "transfer_mode": "WRITE",
            },
        ),
    ],
)
def test_the_registration_has_the_form_of_its_generation(version: str, expected: Mapping[str, Any]) -> None:
    found = settings(argv("producer", proxy_ip="h", proxy_ping_port=1), version, VLLM_HOST_IP="10.0.0.7")
    assert msgpack.unpackb(pack(frame(found, 3))) == expected


@given(st.dictionaries(st.text(max_size=40), st.text(max_size=300) | st.integers(0, 65535), max_size=15))
def test_a_frame_is_msgpack(fields: dict[str, Any]) -> None:
    assert msgpack.unpackb(pack(fields)) == fields


@pytest.mark.parametrize("version", ["0.19.1", "0.32.0"])
def test_a_server_registers_before_it_serves(version: str, start: Callable[..., Any], next_address: Any) -> None:
    router = next_address()
    with zmq.Context() as context, context.socket(zmq.ROUTER) as listening:
        port = listening.bind_to_random_port(f"tcp://{router}")
        words = argv("consumer", proxy_ip=router, proxy_ping_port=port)
        options = ["--catalogue-version", version, "--load-s", "0", "--slow-start-s", "60"]
        server = start(SERVER, words, options=options)
        assert listening.poll(15_000), server.log
        _, sent = listening.recv_multipart()
    role = msgpack.unpackb(sent)["type" if version == "0.32.0" else "role"]
    assert role == "D"
    assert server.status(PORT, "/health") is None


def core_of(server: Any) -> psutil.Process:
    (core,) = psutil.Process(server.process.pid).children()
    server.wait_for(lambda: "EngineCor" in core.name(), "the core's name")
    return core


@pytest.mark.real
def test_a_server_whose_engine_core_is_lost_says_so_at_once_and_ends_with_0(start: Callable[..., Any]) -> None:
    server = start(SERVER, argv("producer"), options=QUICK)
    server.wait_status(PORT, "/health")
    core_of(server).kill()
    server.wait_status(PORT, "/health", 503)
    refused = server.post(PORT, "/v1/completions", {"model": "fake-model", "prompt": "a", "max_tokens": 1})
    assert refused.status_code == 500
    assert server.wait_exit() == 0
    assert "engine core died" in server.log


def test_an_engine_core_ends_with_its_server_in_order_and_outlives_a_killed_one(start: Callable[..., Any]) -> None:
    first, second = (start(SERVER, argv("producer"), options=QUICK) for _ in range(2))
    for server in (first, second):
        server.wait_status(PORT, "/health")
    ended, orphan = core_of(first), core_of(second)
    first.process.terminate()
    assert first.wait_exit() == 0
    ended.wait(5)
    second.process.kill()
    second.wait_exit()
    assert orphan.is_running()
    orphan.kill()
