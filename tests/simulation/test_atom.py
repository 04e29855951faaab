"""ATOM's stand-in with the argv of a public recipe, as prefill and as decode server."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from disagg_atom import simulation
from disagg_run.simulation import text
from tests.simulation.atom_argv import MODEL, QUICK, SERVER, argv
from tests.simulation.looking import count, exit_code, listens


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
    before = count(decode, 8020, "kv_transfers")
    answer = through(prefill, decode)
    assert answer.json()["choices"][0]["text"] == text.answer("hello there", 5)
    assert count(decode, 8020, "kv_transfers") == before + 1


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
        (argv("kv_consumer", "--index-cache-dtype", "fp8"), "index_cache_dtype is 'fp8' here and None at"),
        (argv("kv_consumer", "-dcp", "8"), "decode_context_parallel_size is 8 here and 1 at"),
        (argv("kv_consumer", "--method", "mtp"), "method is 'mtp' here and None at"),
        (argv("kv_consumer", "-pp", "2"), "pp_size is 2 here and 1 at"),
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
