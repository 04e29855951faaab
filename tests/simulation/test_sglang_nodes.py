"""SGLang's stand-ins as one worker over two nodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from tests.simulation.sglang_argv import PORT, QUICK, SERVER, argv, body, through


@pytest.fixture
def worker(start: Callable[..., Any], next_address: Callable[[], str]) -> Callable[..., tuple[Any, Any]]:
    """Head and follower of one worker; the follower starts first."""

    def _worker(mode: str, follower_more: tuple[str, ...] = (), options: tuple[str, ...] = QUICK) -> tuple[Any, Any]:
        head = next_address()
        words = [*argv(mode, tp=16), "--dist-init-addr", f"{head}:20000", "--nnodes", "2", "--node-rank"]
        follower = start(SERVER, [*words, "1", *follower_more], options=options)
        return start(SERVER, [*words, "0"], options=options, address=head), follower

    return _worker


def test_a_follower_answers_health_and_nothing_else(worker: Callable[..., tuple[Any, Any]]) -> None:
    head, follower = worker("decode")
    head.wait_status(PORT, "/health")
    for path in ("/health", "/health_generate", "/ping"):
        follower.wait_status(PORT, path)
    assert follower.status(PORT, "/v1/models") == 404


def test_a_head_waits_for_its_follower(start: Callable[..., Any], next_address: Any) -> None:
    head = next_address()
    words = [*argv("decode", tp=16), "--dist-init-addr", f"{head}:20000", "--nnodes", "2", "--node-rank", "0"]
    server = start(SERVER, words, options=[*QUICK, "--join-timeout-s", "0.5"], address=head)
    assert server.wait_exit() == 1
    assert "nodes [1] did not join within 0.5 s" in server.log


def test_nodes_with_different_sizes_do_not_join(worker: Callable[..., tuple[Any, Any]]) -> None:
    head, follower = worker("decode", ("--tp-size", "8"))
    assert (head.wait_exit(), follower.wait_exit()) == (1, 1)
    assert "node 1 cannot join" in head.log
    assert "refuses this node" in follower.log


def test_a_worker_hangs_when_its_follower_dies(worker: Callable[..., tuple[Any, Any]]) -> None:
    head, follower = worker("decode")
    head.wait_status(PORT, "/health")
    follower.end()
    head.wait_log("node 1 is gone; collectives hang")
    with pytest.raises(httpx.ReadTimeout):
        head.get(PORT, "/health", timeout=0.3)


def test_a_follower_survives_its_head(worker: Callable[..., tuple[Any, Any]]) -> None:
    head, follower = worker("decode")
    follower.wait_status(PORT, "/health")
    head.end()
    follower.wait_log("connection to the head at")
    follower.wait_status(PORT, "/health")


def test_a_prefill_worker_over_two_nodes_serves_decode(
    worker: Callable[..., tuple[Any, Any]], start: Callable[..., Any]
) -> None:
    head, _ = worker("prefill")
    decode = start(SERVER, argv("decode"), options=QUICK)
    head.wait_status(PORT, "/health")
    decode.wait_status(PORT, "/health")
    assert [answer.status_code for answer in through(head, decode, body(head, 1))] == [200, 200]


def test_a_prefill_node_with_a_bootstrap_port_of_its_own_is_left_out(
    worker: Callable[..., tuple[Any, Any]], start: Callable[..., Any]
) -> None:
    """Fault B06: it starts cleanly, and decode fails later on a rank that nobody knows."""
    head, follower = worker("prefill", ("--disaggregation-bootstrap-port", "8999"), (*QUICK, "--peer-timeout-s", "0.3"))
    decode = start(SERVER, argv("decode"), options=QUICK)
    head.wait_status(PORT, "/health")
    decode.wait_status(PORT, "/health")
    answer = through(head, decode, body(head, 1))[1]
    assert answer.status_code == 500
    assert "nodes [1] of the prefill worker are not registered" in answer.json()["error"]["message"]
    assert f"cannot register at the bootstrap server http://{head.address}:8999/route" in follower.log
