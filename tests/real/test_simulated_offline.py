"""A simulated launch behind a real router asks nobody but its own processes."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest

from disagg_run import LaunchSpec, build_host, plan
from disagg_run.simulation.offline import OFFLINE
from tests.running.launched import Launched, until

pytestmark = [pytest.mark.real, pytest.mark.usefixtures("this_machine")]


class Outside(ThreadingHTTPServer):
    """A hub and a proxy in one, which keeps what it is asked and has nothing."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Nothing)
        self.asked: list[str] = []

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.server_port}"


class _Nothing(BaseHTTPRequestHandler):
    server: Outside

    def do_GET(self) -> None:
        self.server.asked.append(self.requestline)
        self.send_error(404)

    do_HEAD = do_POST = do_CONNECT = do_GET

    def log_message(self, *words: object) -> None:
        """Say nothing."""


@pytest.fixture
def outside(monkeypatch: pytest.MonkeyPatch) -> Iterator[Outside]:
    """Where a process of this environment would go that leaves the machine."""
    with Outside() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        for name in ("HF_ENDPOINT", "HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, server.url)
        for name in ("NO_PROXY", "no_proxy", "HF_HUB_OFFLINE"):
            monkeypatch.delenv(name, raising=False)
        yield server
        server.shutdown()


@pytest.mark.parametrize(
    ("engine", "model", "connector"),
    [
        ("sglang-disagg", "DeepSeek-R1-0528", None),
        ("vllm-disagg", "gpt-oss-120b", "vllm-nixl"),
    ],
)
def test_no_request_leaves_a_simulated_launch(
    engine: str, model: str, connector: str | None, outside: Outside, tmp_path: Path
) -> None:
    made = plan(LaunchSpec(engine=engine, model=model, connector=connector, simulate=True), host=build_host())
    launched = Launched(made, tmp_path)
    with contextlib.ExitStack() as stack:
        stack.callback(launched.stop)
        url = launched.serving()["url"]
        body = {"model": made.model.served_name, "prompt": "Hello there", "max_tokens": 2}
        with httpx.Client(trust_env=False, timeout=30) as client:
            assert client.post(f"{url}/v1/completions", json=body).status_code == 200
        assert outside.asked == []
        # The same router without its wrapper is heard: the test would see it.
        words = made.process("router").exec
        assert words[: len(OFFLINE)] == OFFLINE
        other = [sys.executable, "-m", *words[len(OFFLINE) :], "--port", "30001", "--prometheus-port", "29001"]
        with (tmp_path / "router.log").open("wb") as log:
            router = subprocess.Popen(other, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
            stack.callback(router.wait, 20)
            stack.callback(router.kill)
            until(lambda: outside.asked, "a request of the router that is not wrapped", 30)
