"""What vLLM's stand-in is started with, by the connector's family."""

from __future__ import annotations

import json
from typing import Any

SERVER = "disagg_vllm.simulation"
PORT = 2584
MODEL = "/models/Kimi"
QUICK = ("--load-s", "0", "--ttft-s", "0", "--tpot-s", "0", "--peer-timeout-s", "5")
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
