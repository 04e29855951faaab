"""What ATOM's stand-in is started with."""

from __future__ import annotations

import json

MODEL = "/models/DeepSeek-V4-Pro"
SERVER = "disagg_atom.simulation"
PORT = {"kv_producer": 8010, "kv_consumer": 8020}
QUICK = ("--load-s", "0", "--ttft-s", "0", "--tpot-s", "0")


def argv(role: str, *more: str, tp: int = 8, block: int = 16, handshake: int = 6301, model: str = MODEL) -> list[str]:
    config = {"kv_role": role, "kv_connector": "mooncake", "proxy_ip": "10.0.0.1", "handshake_port": handshake}
    return [
        *("python3", "-m", "atom.entrypoints.openai_server", "--model", model, "--host", "0.0.0.0"),
        *("--server-port", str(PORT[role]), "--trust-remote-code", "-tp", str(tp)),
        *("--kv_cache_dtype", "fp8", "--block-size", str(block), "--gpu-memory-utilization", "0.85"),
        *("--max-num-seqs", "256", "--no-enable_prefix_caching", "--kv-transfer-config", json.dumps(config), *more),
    ]
