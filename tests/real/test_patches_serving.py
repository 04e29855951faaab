"""A real vLLM with the patches: it serves, its idle engine runs the reaper, and without them it serves again."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from disagg_run.cli.main import main
from disagg_run.patching import ledgers
from tests.real.vllm_cpu import tiny_llama
from tests.real.vllm_release import install

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1800)]

VERSION = "0.21.0"
#: Seconds after which the reaper may free.
BOUND_S = 2.0
FILES = (
    "vllm/distributed/kv_transfer/kv_connector/v1/moriio/moriio_connector.py",
    "vllm/distributed/kv_transfer/kv_connector/v1/moriio/moriio_engine.py",
    "vllm/v1/core/sched/scheduler.py",
    "vllm/v1/engine/core.py",
)

#: MoRI-IO itself needs its RDMA library and GPUs. This connector stands in under its name, by vLLM's own plugin door,
#: and does the one thing that matters: it keeps the blocks of every finished request, and nothing acknowledges them.
LEAKY = """
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorMetadata


class LeakyConnector(KVConnectorBase_V1):
    def start_load_kv(self, forward_context, **kwargs): ...

    def wait_for_layer_load(self, layer_name): ...

    def save_kv_layer(self, layer_name, kv_layer, attn_metadata, **kwargs): ...

    def wait_for_save(self): ...

    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        return 0, False

    def update_state_after_alloc(self, request, blocks, num_external_tokens): ...

    def build_connector_meta(self, scheduler_output):
        return KVConnectorMetadata()

    def request_finished(self, request, block_ids):
        return True, None


def register():
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    KVConnectorFactory._registry["MoRIIOConnector"] = lambda: LeakyConnector
"""


@pytest.fixture(scope="module")
def bin_dir() -> Path:
    return install(VERSION)


@pytest.fixture(scope="module")
def site(bin_dir: Path) -> Path:
    (found,) = bin_dir.parent.glob("lib/python3.*/site-packages")
    return found


@pytest.fixture
def leaky(tmp_path: Path) -> Path:
    """A directory for ``PYTHONPATH`` with the connector as a plugin of vLLM."""
    info = tmp_path / "plugin" / "leaky-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: leaky\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[vllm.general_plugins]\nleaky = leaky:register\n")
    (info.parent / "leaky.py").write_text(LEAKY)
    return info.parent


class Server:
    """A real server with the leaky connector."""

    def __init__(self, bin_dir: Path, model: Path, plugin: Path, log: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.base, self.log, self.model = f"http://127.0.0.1:{port}", log, model
        transfer = {"kv_connector": "MoRIIOConnector", "kv_role": "kv_producer"}
        words = [bin_dir / "vllm", "serve", model, "--host", "127.0.0.1", "--port", port, "--dtype", "float32"]
        words += ["--enforce-eager", "--block-size", 32, "--max-model-len", 512, "--kv-cache-memory-bytes", 33554432]
        words += ["--kv-transfer-config", json.dumps(transfer)]
        env = {
            **os.environ,
            "PYTHONPATH": str(plugin),
            "HF_HUB_OFFLINE": "1",
            "VLLM_HOST_IP": "127.0.0.1",
            "VLLM_NO_USAGE_STATS": "1",
            "OMP_NUM_THREADS": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "DISAGG_MORIIO_DEFER_TIMEOUT_S": str(BOUND_S),
        }
        with log.open("wb") as out:
            self.process = subprocess.Popen(
                list(map(str, words)), stdout=out, stderr=out, stdin=subprocess.DEVNULL, env=env, start_new_session=True
            )

    def get(self, path: str, body: dict[str, Any] | None = None) -> str:
        data = json.dumps(body).encode() if body else None
        asked = urllib.request.Request(self.base + path, data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(asked, timeout=60) as answer:
            text: str = answer.read().decode()
        return text

    def ready(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()[-3000:]
        try:
            self.get("/health")
        except OSError:
            return False
        return True

    def complete(self, prompt: str) -> str:
        body = {"model": str(self.model), "prompt": prompt, "max_tokens": 12, "temperature": 0}
        text: str = json.loads(self.get("/v1/completions", body))["choices"][0]["text"]
        return text

    def cache_use(self) -> float:
        """Share of the KV cache that is held."""
        found = re.search(r"^vllm:kv_cache_usage_perc\{.*\} (\S+)$", self.get("/metrics"), re.M)
        assert found
        return float(found[1])


@contextmanager
def serving(bin_dir: Path, plugin: Path, log: Path) -> Iterator[Server]:
    server = Server(bin_dir, tiny_llama(bin_dir), plugin, log)
    try:
        until(server.ready, 300)
        yield server
    finally:
        os.killpg(server.process.pid, signal.SIGTERM)
        try:
            server.process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(server.process.pid, signal.SIGKILL)
            server.process.wait(30)


def until(condition: Callable[[], Any], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds} s in vain"
        time.sleep(0.1)


def patches(*words: str) -> None:
    assert main(["patches", *words]) == 0


def test_patched_it_serves_and_frees_what_leaks_and_reverted_it_serves_again(
    bin_dir: Path, site: Path, leaky: Path, tmp_path: Path
) -> None:
    python = str(bin_dir / "python")
    patches("revert", "--python", python)  # what a run that was killed has left
    before = {name: (site / name).read_bytes() for name in FILES}
    prompts = ["hello world", "prefill reads the prompt", "0123456789"]

    patches("apply", "moriio", "--python", python)
    assert [(site / name).read_bytes() != before[name] for name in FILES] == [True] * len(FILES)
    with serving(bin_dir, leaky, tmp_path / "patched.log") as server:
        patched = [server.complete(prompt) for prompt in prompts]
        assert server.cache_use() > 0
        # Nobody asks it anything any more: an idle engine is not stepped by itself in this release.
        until(lambda: "prefill-idle-kv-reaper: freed the blocks of 3 finished requests" in server.log.read_text(), 20)
        until(lambda: server.cache_use() == 0, 10)
        assert f"in {BOUND_S:g} s without work" in server.log.read_text()
        assert server.complete(prompts[0]) == patched[0]

    patches("revert", "--python", python)
    assert {name: (site / name).read_bytes() for name in FILES} == before
    assert ledgers([site]) == ()
    with serving(bin_dir, leaky, tmp_path / "reverted.log") as server:
        assert [server.complete(prompt) for prompt in prompts] == patched
        held = server.cache_use()
        assert held > 0
        idle_until = time.monotonic() + 3 * BOUND_S
        while time.monotonic() < idle_until:
            assert server.cache_use() == held  # the leak that the patch is for
            time.sleep(0.5)
        assert "reaper" not in server.log.read_text()
