"""Real launches of the example run files: what is planned, what is asked of them, and what their processes open."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import httpx
import psutil

from disagg_run import LaunchPlan, PlannedProcess, build_host, plan
from disagg_run.spec.reading import read_spec
from tests.running.launched import Launched, until

EXAMPLES = Path(__file__).parents[2] / "examples"
HOST = build_host()

#: A server starts in about 20 s on two idle cores; others may use them.
START_S = 600.0
#: Longer than two blocks of 32 tokens for the tests' model, each with a beginning of its own.
PROMPTS = tuple(
    f"{number} {'prefill reads the prompt and decode writes the answer ' * 8}{'0123456789 ' * (number % 5)}"
    for number in range(20)
)
TOKENS = 12


#: Launches a plan with the installed engine.
Starter = Callable[[LaunchPlan], Launched]


@attrs.frozen(kw_only=True)
class Installed:
    """What is installed for these tests."""

    #: Directory with vllm, vllm-router and python.
    bin: Path
    #: Two models that differ in their weights alone.
    model: Path
    other: Path


_addresses = itertools.count(1)


def addresses(count: int) -> list[str]:
    """Loopback addresses that no other test of this machine uses, whose closed connections may still hold ports."""
    pid = os.getpid()
    return [f"127.{150 + pid // 250 % 50}.{1 + pid % 250}.{next(_addresses)}" for _ in range(count)]


def planned(recipe: str, installed: Installed, scratch: Path, **options: Any) -> LaunchPlan:
    """The plan of an example at addresses and paths of this test; ``options`` as on a command line."""
    nodes = addresses(4 if "2p2d" in recipe else 2)
    # The router's metrics are on 127.0.0.1 for all launches of this machine.
    settings = [f"prometheus_port={20000 + os.getpid() % 9000}"]
    if "connector" not in options:
        settings.append(f"shared_storage_path={scratch / 'kv'}")
    given = {"nodes": ",".join(nodes), "model_path": str(installed.model), "settings": settings, **options}
    return plan(read_spec(options=given, recipe=EXAMPLES / recipe, environ={}, host=HOST), host=HOST)


def serving(launched: Launched) -> str:
    """Wait until a launch serves; where it does."""

    def seen() -> str:
        assert launched.process.poll() is None, launched.text()
        return next((each["url"] for each in launched.events(0) if each["event"] == "run.serving"), "")

    return str(until(seen, "the launch to serve", START_S))


# --- asking ------------------------------------------------------------------------------------------------------


@attrs.frozen
class Said:
    """An answer."""

    text: str
    token_ids: tuple[int, ...]


def ask(url: str, prompt: str, *, chat: bool = False, stream: bool = False) -> Said:
    """A greedy completion of ``TOKENS`` tokens."""
    body: dict[str, Any] = {"model": "tiny-llama", "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
    body |= {"return_token_ids": True, "stream": stream}
    body |= {"messages": [{"role": "user", "content": prompt}]} if chat else {"prompt": prompt}
    answer = httpx.post(f"{url}/v1/{'chat/' if chat else ''}completions", json=body, timeout=120, trust_env=False)
    assert answer.status_code == 200, answer.text
    if not stream:
        return _said([answer.json()])
    # Answers hold odd characters, some of which str.splitlines takes for ends of lines.
    events = [line.removeprefix("data: ") for line in answer.text.split("\n") if line]
    assert events[-1] == "[DONE]", answer.text
    assert len(events) > 2  # it came in pieces, though not one a token where the machine is busy
    return _said([json.loads(event) for event in events[:-1]])


def _said(bodies: list[dict[str, Any]]) -> Said:
    choices = [body["choices"][0] for body in bodies if body["choices"]]
    texts = [each.get("text") or (each.get("message") or each.get("delta") or {}).get("content") for each in choices]
    ids = [number for each in choices for number in each.get("token_ids") or ()]
    assert len(ids) == TOKENS, bodies
    return Said("".join(text or "" for text in texts), tuple(ids))


def answers(url: str) -> dict[str, list[Said]]:
    """All prompts, asked in every way."""
    ways = {"plain": (False, False), "streamed": (False, True), "chat": (True, False), "streamed chat": (True, True)}
    return {
        way: [ask(url, prompt, chat=chat, stream=stream) for prompt in PROMPTS] for way, (chat, stream) in ways.items()
    }


def prompt_tokens(url: str) -> dict[str, int]:
    """How many prompt tokens a server has had, by where their KV came from."""
    text = httpx.get(f"{url}/metrics", timeout=30, trust_env=False).text
    found = re.findall(r'^vllm:prompt_tokens_by_source_total\{.*source="(\w+)"\} ([0-9.e+]+)$', text, re.MULTILINE)
    return {source: int(float(number)) for source, number in found}


# --- processes ---------------------------------------------------------------------------------------------------


def process(made: LaunchPlan, name: str) -> tuple[PlannedProcess, str]:
    """A process of the plan, and its node's address."""
    for rank in made.ranks:
        for each in rank.processes():
            if each.name == name:
                return each, rank.node.address
    raise AssertionError(name)


def family(pid: int) -> list[psutil.Process]:
    """A process and all that descends from it."""
    first = psutil.Process(pid)
    return [first, *first.children(recursive=True)]


def opened(pid: int) -> set[tuple[str, int]]:
    """Where a process and its descendants listen."""
    return {
        (each.laddr.ip, each.laddr.port)
        for one in family(pid)
        for each in one.net_connections("inet")
        if each.status == psutil.CONN_LISTEN
    }


def engine_core(pid: int) -> int:
    """The engine core of a server."""
    return next(each.pid for each in family(pid) if "EngineCore" in each.name())


@contextmanager
def single_server(made: LaunchPlan, installed: Installed, log: Path) -> Iterator[str]:
    """The plan's decode server alone, without KV transfer; where it serves."""
    decode, address = process(made, "decode-0")
    argv = list(decode.argv)
    at = argv.index("--kv-transfer-config")
    del argv[at : at + 2]
    url = f"http://{address}:{decode.ports['http']}"
    with log.open("wb") as output:
        server = subprocess.Popen(
            [str(installed.bin / argv[0]), *argv[1:]],
            env={**os.environ, **decode.env},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def healthy() -> bool:
        assert server.poll() is None, log.read_text(errors="replace")[-3000:]
        try:
            return httpx.get(f"{url}/health", timeout=5, trust_env=False).status_code == 200
        except httpx.TransportError:
            time.sleep(0.2)
            return False

    try:
        until(healthy, "the single server", START_S)
        yield url
    finally:
        server.terminate()
        try:
            server.wait(60)
        finally:
            if server.poll() is None:
                os.killpg(server.pid, signal.SIGKILL)
                server.wait()
