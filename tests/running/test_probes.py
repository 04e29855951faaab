"""Proofs of readiness asked of real servers, and what they say where they fail."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from disagg_run.planning.document import Ready
from disagg_run.running.probes import Prober, generation_body, http_client, place
from disagg_run.running.serving import Entrance
from tests.running.launched import until
from tests.running.plans import HTTP, SERVER, addresses


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Where a server of model ``toy`` listens."""
    own = addresses(1)[0]
    with started(own):
        yield own


class started:
    def __init__(self, address: str, *words: str) -> None:
        self.address = address
        env = {**os.environ, "DISAGG_RUN_NODE_ADDRESS": address}
        argv = [sys.executable, "-S", str(SERVER), "--port", str(HTTP), *words]
        self.process = subprocess.Popen(argv, env=env, stdout=subprocess.DEVNULL)

    def __enter__(self) -> subprocess.Popen[bytes]:
        def answers() -> bool:
            with socket.socket() as probe:
                return probe.connect_ex((self.address, HTTP)) == 0

        until(answers, "the server")
        return self.process

    def __exit__(self, *error: object) -> None:
        self.process.kill()
        self.process.wait()


def lacking(kind: str, target: str, answer_s: float = 5.0, **identity: str) -> str:
    async def ask() -> str:
        async with http_client() as client:
            ready = Ready(kind=kind, target=target, timeout_s=1, identity=identity)  # type: ignore[arg-type]
            return str(await Prober(client, "toy").lacking(ready, answer_s))

    return asyncio.run(ask())


def test_a_port_a_path_and_a_generation_are_proved_by_a_server_that_has_them(address: str) -> None:
    base = f"http://{address}:{HTTP}"
    assert lacking("tcp", f"{address}:{HTTP}") == ""
    assert lacking("http", f"{base}/health") == ""
    assert lacking("generation", f"{base}/v1/completions") == ""
    assert lacking("http", f"{base}/health", served_model="toy", url=f"{base}/v1/models") == ""


def test_a_server_of_another_model_is_not_ours(address: str) -> None:
    base = f"http://{address}:{HTTP}"
    text = lacking("http", f"{base}/health", served_model="mine", url=f"{base}/v1/models")
    assert text == f"{base}/v1/models serves toy, not mine"


def test_where_nothing_listens_the_address_is_named() -> None:
    own = addresses(1)[0]
    assert lacking("tcp", f"{own}:{HTTP}") == f"nothing listens on {own} port {HTTP}"
    assert lacking("http", f"http://{own}:{HTTP}/health") == f"nothing listens on {own} port {HTTP}"


def test_an_answer_that_says_not_yet_is_shown() -> None:
    own = addresses(1)[0]
    with started(own, "--unready"):
        url = f"http://{own}:{HTTP}/health"
        assert lacking("http", url) == f'{url} answers 503 ({{"status": "loading"}})'


def test_a_server_that_takes_connections_and_answers_nothing_is_given_up_after_its_time() -> None:
    own = addresses(1)[0]
    with started(own) as process:
        process.send_signal(signal.SIGHUP)
        url = f"http://{own}:{HTTP}/health"
        until(lambda: lacking("http", url, 0.2) == f"{url} does not answer within 0.2 s", "the wedge")


def test_a_proxy_of_the_environment_is_not_asked(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://192.0.2.1:1")
    assert lacking("http", f"http://{address}:{HTTP}/health") == ""


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("http://10.0.0.1:8010/health", ("10.0.0.1", 8010)),
        ("10.0.0.1:8010", ("10.0.0.1", 8010)),
        ("http://[fd00::1]:8010/health", ("fd00::1", 8010)),
        ("[fd00::1]:8010", ("fd00::1", 8010)),
        ("http://node7/health", ("node7", 80)),
    ],
)
def test_host_and_port_are_those_of_url_or_pair(target: str, expected: tuple[str, int]) -> None:
    assert place(target) == expected


def test_a_chat_path_gets_messages_and_another_a_prompt() -> None:
    assert "messages" in generation_body("http://h/v1/chat/completions", "m", tokens=1)
    assert "prompt" in generation_body("http://h/v1/completions", "m", tokens=1)


def test_the_curl_line_survives_quotes_in_the_models_name(tmp_path: Path) -> None:
    where = Entrance(process="router", base="http://h:1", model='it\'s a "model" $HOME')
    echo = subprocess.run(
        ["bash", "-c", where.curl().replace("curl -sS", "printf '%s\\n'")], capture_output=True, text=True, check=True
    )
    assert where.model in echo.stdout.replace('\\"', '"')
