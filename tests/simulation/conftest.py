"""Real stand-in processes on loopback addresses of their own, and HTTP to them."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

_numbers = itertools.count(1)
# One client for all tests: to make one costs more than the request. Nothing is kept open after an answer.
_http = httpx.Client(trust_env=False, verify=False, limits=httpx.Limits(max_keepalive_connections=0))

# aiohttp reads the machine's certificates when it is imported, a fifth of a stand-in's start; nothing here uses TLS.
_CHEAPER = {"SSL_CERT_FILE": os.devnull}


def _next_address() -> str:
    """A loopback address that no other test of this machine uses at the same time."""
    pid = os.getpid()
    return f"127.{64 + pid // 250 % 128}.{1 + pid % 250}.{next(_numbers) % 250 + 1}"


class StandIn:
    """One running process and its log."""

    def __init__(self, argv: Sequence[str], address: str, log: Path, env: dict[str, str]) -> None:
        self.address = address
        self.log_path = log
        with log.open("wb") as stream:
            self.process = subprocess.Popen(
                argv,
                stdout=stream,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                env={**os.environ, **_CHEAPER, "DISAGG_RUN_NODE_ADDRESS": address, **env},
            )

    @property
    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def url(self, port: int, path: str = "") -> str:
        return f"http://{self.address}:{port}{path}"

    def wait_status(self, port: int, path: str, status: int = 200, *, timeout_s: float = 15.0) -> None:
        """Poll until a GET answers with ``status``."""
        self.wait_for(lambda: self.status(port, path) == status, f"GET {path} = {status}", timeout_s=timeout_s)

    def status(self, port: int, path: str) -> int | None:
        try:
            return self.get(port, path, timeout=2).status_code
        except httpx.TransportError:
            return None

    def wait_for(self, holds: Callable[[], bool], what: str, *, timeout_s: float = 15.0) -> None:
        """Poll until ``holds()``; fails with the log where the process ends first."""
        deadline = time.monotonic() + timeout_s
        while not holds():
            if self.process.poll() is not None:
                pytest.fail(f"ended with {self.process.returncode} before {what}:\n{self.log}")
            if time.monotonic() > deadline:
                pytest.fail(f"not within {timeout_s} s: {what}:\n{self.log}")
            time.sleep(0.02)

    def wait_log(self, text: str, *, timeout_s: float = 15.0) -> None:
        self.wait_for(lambda: text in self.log, f"{text!r} in the log", timeout_s=timeout_s)

    def wait_exit(self, *, timeout_s: float = 15.0) -> int:
        """The exit code; negative for a signal."""
        return self.process.wait(timeout_s)

    def get(self, port: int, path: str, **more: Any) -> httpx.Response:
        return _http.get(self.url(port, path), **more)

    def stream(self, port: int, path: str, body: dict[str, Any]) -> contextlib.AbstractContextManager[httpx.Response]:
        return _http.stream("POST", self.url(port, path), json=body, timeout=20)

    def post(self, port: int, path: str, body: dict[str, Any]) -> httpx.Response:
        return _http.post(self.url(port, path), json=body, timeout=20)

    def end(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(10)


Start = Callable[..., StandIn]


@contextlib.contextmanager
def _starting(folder: Path) -> Iterator[Start]:
    started: list[StandIn] = []

    def _start(
        program: str | Path,
        argv: Sequence[str],
        *,
        options: Sequence[str] = (),
        address: str | None = None,
        env: dict[str, str] | None = None,
    ) -> StandIn:
        words = [str(program)] if isinstance(program, Path) else ["-m", program]
        command = [sys.executable, *words, *options, "--", *argv]
        log = folder / f"{len(started)}.log"
        started.append(StandIn(command, address or _next_address(), log, env or {}))
        return started[-1]

    try:
        yield _start
    finally:
        for stand_in in started:
            stand_in.end()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """``start(module_or_script, argv, options=(), address=None, env={})`` starts a stand-in, ended with the test."""
    with _starting(tmp_path) as starting:
        yield starting


@pytest.fixture(scope="module")
def start_shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """As ``start``, for stand-ins that several tests of a module ask; ended with the module."""
    with _starting(tmp_path_factory.mktemp("shared")) as starting:
        yield starting


@pytest.fixture(scope="session")
def next_address() -> Callable[[], str]:
    return _next_address


def events(response_text: str) -> list[dict[str, Any]]:
    """The JSON events of a streamed answer, which must end with ``[DONE]``."""
    lines = [line.removeprefix("data: ") for line in response_text.splitlines() if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


@pytest.fixture
def read_events() -> Callable[[str], list[dict[str, Any]]]:
    return events
