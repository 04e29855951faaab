"""Servers behind a real router, each on a loopback address of its own: started, waited for, asked and ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from disagg_run.simulation import text

MODEL = "Toy-Model"
ROUTER_PORT, SGLANG_PORT, VLLM_PORT, DISCOVERY_PORT = 30000, 8000, 2584, 36367
QUICK = ("--load-s", "0", "--ttft-s", "0", "--tpot-s", "0", "--peer-timeout-s", "5")


class Launch:
    """Some processes, each on a loopback address of its own, and their logs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes: list[subprocess.Popen[bytes]] = []
        pid = os.getpid()
        self._prefix = f"127.{200 + pid // 250 % 50}.{1 + pid % 250}"

    def address(self, number: int) -> str:
        return f"{self._prefix}.{number}"

    def start(self, number: int, argv: Sequence[str], **env: str) -> Path:
        """Start a command as node ``number``; returns its log."""
        log = self.folder / f"{len(self.processes)}.log"
        # The routers look for a tokenizer in the internet; nothing of these tests leaves this machine.
        offline = {"HF_ENDPOINT": "http://127.0.0.1:9", "DISAGG_RUN_NODE_ADDRESS": self.address(number)}
        with log.open("wb") as stream:
            self.processes.append(
                subprocess.Popen(
                    argv,
                    stdout=stream,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    env={**os.environ, **offline, **env},
                )
            )
        return log

    def wait(self, holds: Callable[[], bool], what: str, *, timeout_s: float = 40.0) -> None:
        deadline = time.monotonic() + timeout_s
        while not holds():
            if time.monotonic() > deadline or any(process.poll() is not None for process in self.processes):
                logs = (
                    f"== {log.name}\n{log.read_text(errors='replace')[-3000:]}" for log in self.folder.glob("*.log")
                )
                pytest.fail(f"not seen: {what}\n" + "\n".join(logs))
            time.sleep(0.05)

    def status(self, path: str) -> int | None:
        try:
            return httpx.get(self.router + path, timeout=5, trust_env=False).status_code
        except httpx.TransportError:
            return None

    @property
    def router(self) -> str:
        return f"http://{self.address(1)}:{ROUTER_PORT}"

    def end(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(10)


def check_generations(launch: Launch, *, rounds: int = 1) -> None:
    """Completions and chat, plain and streamed, are what the model says."""
    messages = [{"role": "user", "content": "hello there"}]
    asked: list[tuple[str, dict[str, Any], str]] = [
        ("/v1/completions", {"prompt": "hello there"}, "hello there"),
        ("/v1/chat/completions", {"messages": messages}, text.chat_text(messages)),
    ]
    for path, prompt, words in asked * rounds:
        expected = text.answer(words, 6)
        body = {"model": MODEL, "max_tokens": 6, **prompt}
        plain = httpx.post(launch.router + path, json=body, timeout=20, trust_env=False)
        assert plain.status_code == 200, plain.text
        choice = plain.json()["choices"][0]
        assert (choice.get("text") or choice["message"]["content"]) == expected
        options = {"stream": True, "stream_options": {"include_usage": True}}
        streamed = httpx.post(launch.router + path, json={**body, **options}, timeout=20, trust_env=False)
        lines = [line.removeprefix("data: ") for line in streamed.text.splitlines() if line]
        assert lines[-1] == "[DONE]", streamed.text
        events = [json.loads(line) for line in lines[:-1]]
        pieces = [event["choices"][0] for event in events if event["choices"]]
        said = "".join(piece.get("text") or piece.get("delta", {}).get("content") or "" for piece in pieces)
        assert said == expected
        assert events[-1]["usage"]["completion_tokens"] == 6


def transfers(launch: Launch, number: int, port: int) -> int:
    """How many requests a decode server took over from a prefill server."""
    metrics = httpx.get(f"http://{launch.address(number)}:{port}/metrics", trust_env=False).text
    counts = dict(line.split() for line in metrics.splitlines())
    assert "standin_local_prefills_total" not in counts
    return int(counts["standin_kv_transfers_total"])
