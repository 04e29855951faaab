"""What SGLang's stand-in is started with, and one request to a pair."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx

MODEL = "/models/DeepSeek-R1-0528"
SERVER = "disagg_sglang.simulation"
PORT = 8000
QUICK = ("--load-s", "0", "--ttft-s", "0", "--tpot-s", "0", "--peer-timeout-s", "5")


def argv(mode: str, *more: str, tp: int = 8) -> list[str]:
    return [
        *("python3", "-m", "sglang.launch_server", "--model-path", MODEL, "--disaggregation-mode", mode),
        *("--host", "0.0.0.0", "--port", str(PORT), "--trust-remote-code", "--tp-size", str(tp)),
        *("--kv-cache-dtype", "fp8_e4m3", "--disaggregation-transfer-backend", "mori", *more),
    ]


def through(prefill: Any, decode: Any, body: dict[str, Any], path: str = "/v1/completions") -> list[httpx.Response]:
    """The same body to both at once, as the router sends it."""
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(lambda server: server.post(PORT, path, body), (prefill, decode)))


def body(prefill: Any, room: int, **more: Any) -> dict[str, Any]:
    place = {"bootstrap_host": prefill.address, "bootstrap_port": 8998, "bootstrap_room": room}
    return {"model": MODEL, "prompt": "hello there", "max_tokens": 5, **place, **more}
