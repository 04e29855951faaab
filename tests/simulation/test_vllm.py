"""vLLM's stand-in: arguments, ports, workers over nodes, registration in both generations, and its engine core."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import httpx
import msgpack  # type: ignore[import-untyped]
import psutil
import pytest
import zmq
from hypothesis import given
from hypothesis import strategies as st

from disagg_run import ParityError, RoleSpec
from disagg_run.simulation.arguments import build_parser, read_catalogue
from disagg_run.simulation.process import Died
from disagg_vllm import simulation
from disagg_vllm.simulation_registration import frame, pack, registers
from disagg_vllm.simulation_settings import Settings, read_settings
from tests.engine_plans import typed
from tests.simulation.looking import exit_code, listens
from tests.simulation.vllm_argv import PORT, QUICK, SERVER, argv
from tests.vllm_plans import planned

CATALOGUE = Path(simulation.__file__).parent / "catalogues" / "vllm-serve-0.32.0.json"


# --- arguments ---------------------------------------------------------------------------------------------------


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
    assert exit_code(simulation.main, ["--", *argv("producer"), *words]) == code
    assert message in capsys.readouterr().err


def test_another_program_is_not_found(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code(simulation.main, ["--", "vllm", "bench", "serve"]) == 127
    assert "expected vllm serve" in capsys.readouterr().err


def settings(words: list[str], version: str = "0.32.0", **environ: str) -> Settings:
    parser = build_parser(read_catalogue(CATALOGUE), prog="vllm serve")
    return read_settings(parser.parse_args(words[2:]), environ, version)


def test_underscores_count_as_dashes() -> None:
    found = settings([*argv("producer"), "--tensor_parallel_size=4", "--max-num-batched-tokens", "4K"])
    assert found.tp == 4


@pytest.mark.parametrize(
    ("prefill", "decode", "same"),
    [
        ("--dtype half", "--dtype float16", True),
        ("--dtype half", "--dtype bfloat16", False),
        ("--attention-backend flash_attn", "--attention-backend FLASH_ATTN", True),
        ("--attention-backend auto", "", True),
        ("--kv-cache-dtype fp8", "--kv-cache-dtype fp8_e4m3", False),
    ],
)
def test_paired_servers_compare_what_values_mean_as_the_plan_does(prefill: str, decode: str, same: bool) -> None:
    one, other = (settings([*argv("both", family="nixl"), *words.split()]) for words in (prefill, decode))
    assert (one.shared == other.shared) is same
    sides = {"prefill": RoleSpec(args=[typed(*prefill.split())]), "decode": RoleSpec(args=[typed(*decode.split())])}
    if same:
        planned(connector="vllm-nixl", **sides)
    else:
        with pytest.raises(ParityError):
            planned(connector="vllm-nixl", **sides)


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
