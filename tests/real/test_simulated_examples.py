"""A representative dozen of the run files, simulated to serving behind the real routers of PyPI.

All of them: ``python -m tests.nightly``.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.nightly import names, simulate

pytestmark = [pytest.mark.real, pytest.mark.usefixtures("this_machine")]

#: Run file -> what no other of them shows. Small ones: each costs a few seconds.
DOZEN = {
    "dsr1-fp8-mi355x-sglang-disagg-ports": "every port fixed, decode over two nodes with DP attention and EP",
    "dsr1-fp8-mi355x-sglang-disagg-hicache-store": "a service that servers wait for and use",
    "dsv4-fp4-mi355x-sglang-disagg-agentic": "policies, health checks and metrics of an agentic load; drafts",
    "dsr1-fp4-sglang-disagg-one-node": "two workers on one node, each with its ports",
    "dsr1-fp8-sglang-disagg-ipv6": "nodes of IPv6 with a worker over two of them",
    "kimi-fp4-mi355x-vllm-ports": "MoRI-IO READ with discovery, every port fixed",
    "kimi-fp4-mi355x-vllm-dep-write": "MoRI-IO WRITE, one data-parallel rank a GPU",
    "kimi-fp4-vllm-dp-hybrid": "data parallelism over nodes that all serve",
    "minimax-m3-fp4-vllm-tp4-mtp": "NIXL, nodes of four GPUs, drafts on both roles",
    "vllm-cpu-1p1d": "a setup process, KV as files",
    "kimi-fp4-mi355x-atom-router": "a router with policies, retries and ports of its own, two workers a role",
    "minimax-m3-fp4-mi355x-atom-tp4-mtp": "online quantisation, nodes of four GPUs, a draft model",
}


def test_the_dozen_are_run_files_of_every_engine() -> None:
    assert len(DOZEN) >= 12
    assert set(DOZEN) <= set(names())
    for engine in ("sglang", "vllm", "atom"):
        assert any(f"-{engine}-" in name or name.startswith(f"{engine}-") for name in DOZEN)


@pytest.mark.parametrize("name", DOZEN)
def test_a_run_file_serves_simulated_and_leaves_nothing(name: str, tmp_path: Path) -> None:
    found = simulate(name, tmp_path / "run", requests=4, timeout_s=90)
    assert found.passed, f"{found}\n{found.text[-4000:]}"
