"""The stand-ins behind the real routers of PyPI, which the test installs into a virtual environment of its own."""

from __future__ import annotations

import fcntl
import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from disagg_run import LaunchSpec, Node, build_host, plan
from tests.real.routed import (
    DISCOVERY_PORT,
    MODEL,
    QUICK,
    ROUTER_PORT,
    SGLANG_PORT,
    VLLM_PORT,
    Launch,
    check_generations,
    transfers,
)

pytestmark = pytest.mark.real

ROUTERS = ("sglang-router==0.3.2", "vllm-router==0.1.17")


@pytest.fixture(scope="session")
def routers(pytestconfig: pytest.Config) -> Path:
    """The ``bin`` directory of a virtual environment with the routers; made once, and kept in pytest's cache."""
    if pytestconfig.cache is None:
        raise RuntimeError("pytest's cache is off: run without -p no:cacheprovider")
    home = pytestconfig.cache.mkdir("routers-" + "-".join(ROUTERS).replace("=", ""))
    with (home / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = home / "done"
        if not done.exists():
            subprocess.run([sys.executable, "-m", "venv", "--clear", str(home / "venv")], check=True)
            subprocess.run([str(home / "venv/bin/python"), "-m", "pip", "install", "-q", *ROUTERS], check=True)
            done.touch()
    return home / "venv/bin"


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Launch]:
    made = Launch(tmp_path)
    yield made
    made.end()


# --- nodes of IPv6 -----------------------------------------------------------------------------------------------

#: Of each router, what starts it with nobody to wait for long.
ALONE = {
    "sglang-disagg": (
        ("python", "-m", "sglang_router.launch_router", "--pd-disaggregation"),
        ("--prefill", "http://[::1]:9", "--decode", "http://[::1]:9", "--worker-startup-timeout-secs", "1"),
    ),
    "vllm-disagg": (
        ("vllm-router", "--vllm-pd-disaggregation"),
        ("--kv-connector", "moriio", "--vllm-discovery-address", "127.0.0.1:0"),
    ),
}


@pytest.mark.parametrize(
    ("engine", "model", "connector"),
    [("sglang-disagg", "DeepSeek-R1-0528", None), ("vllm-disagg", "gpt-oss-120b", "vllm-nixl")],
)
def test_a_router_takes_the_host_that_a_plan_of_ipv6_nodes_gives_it(
    engine: str, model: str, connector: str | None, launch: Launch, routers: Path
) -> None:
    nodes = [Node(address=f"fd00::{number}") for number in (1, 2)]
    spec = LaunchSpec(engine=engine, model=model, connector=connector, nodes=nodes)
    planned = plan(spec, host=build_host()).process("router").argv
    ports = []
    for _ in range(2):
        with socket.create_server(("::1", 0), family=socket.AF_INET6) as free:
            ports.append(str(free.getsockname()[1]))
    program, alone = ALONE[engine]
    argv = [str(routers / program[0]), *program[1:], *alone, "--host", planned[planned.index("--host") + 1]]
    launch.start(1, [*argv, "--port", ports[0], "--prometheus-port", ports[1]])

    def answers() -> bool:
        try:
            return bool(httpx.get(f"http://[::1]:{ports[0]}/health", timeout=5, trust_env=False).status_code)
        except httpx.TransportError:
            return False

    launch.wait(answers, "an answer by IPv6")


# --- SGLang ------------------------------------------------------------------------------------------------------


def start_sglang(launch: Launch, number: int, mode: str) -> None:
    launch.start(
        number,
        [
            *(sys.executable, "-m", "disagg_sglang.simulation", *QUICK, "--"),
            *(
                "python3",
                "-m",
                "sglang.launch_server",
                "--model-path",
                f"/models/{MODEL}",
                "--served-model-name",
                MODEL,
            ),
            *("--disaggregation-mode", mode, "--host", "0.0.0.0", "--port", str(SGLANG_PORT), "--tp-size", "8"),
            *("--disaggregation-transfer-backend", "mori", "--enable-metrics"),
        ],
    )


@pytest.mark.parametrize(("prefills", "decodes", "bootstrap"), [(1, 1, ["8998"]), (2, 1, ["8998"]), (1, 2, [])])
def test_sglang_router_joins_prefill_and_decode(
    prefills: int, decodes: int, bootstrap: list[str], launch: Launch, routers: Path
) -> None:
    argv = [str(routers / "python"), "-m", "sglang_router.launch_router", "--pd-disaggregation", "--policy", "random"]
    argv += ["--host", launch.address(1), "--port", str(ROUTER_PORT), "--worker-startup-check-interval", "1"]
    argv += ["--prometheus-host", launch.address(1), "--prometheus-port", "29100"]
    for number in range(1, prefills + decodes + 1):
        start_sglang(launch, number, "prefill" if number <= prefills else "decode")
        url = f"http://{launch.address(number)}:{SGLANG_PORT}"
        argv += ["--prefill", url, *bootstrap] if number <= prefills else ["--decode", url]
    launch.start(1, argv)

    def complete() -> bool:
        if launch.status("/readiness") != 200:
            return False
        workers = httpx.get(launch.router + "/workers", trust_env=False).json()["workers"]
        return len([worker for worker in workers if worker["is_healthy"]]) == prefills + decodes

    launch.wait(complete, "all workers healthy at the router")
    check_generations(launch, rounds=3)
    taken = [transfers(launch, number, SGLANG_PORT) for number in range(prefills + 1, prefills + decodes + 1)]
    assert sum(taken) == 12


# --- vLLM --------------------------------------------------------------------------------------------------------


def start_vllm(launch: Launch, number: int, role: str, connector: str, *options: str, **extra: Any) -> None:
    config = {"kv_connector": connector, "kv_role": role, "kv_connector_extra_config": extra}
    launch.start(
        number,
        [
            *(sys.executable, "-m", "disagg_vllm.simulation", *QUICK, *options, "--"),
            *("vllm", "serve", f"/models/{MODEL}", "--served-model-name", MODEL, "--port", str(VLLM_PORT)),
            *("--tensor-parallel-size", "8", "--kv-transfer-config", json.dumps(config)),
        ],
        VLLM_NIXL_SIDE_CHANNEL_HOST=launch.address(number),
    )


def start_moriio(launch: Launch, number: int, role: str, mode: str, *options: str) -> None:
    place = {"proxy_ip": launch.address(1), "proxy_ping_port": str(DISCOVERY_PORT), "http_port": str(VLLM_PORT)}
    start_vllm(launch, number, role, "MoRIIOConnector", *options, **place, read_mode=mode == "READ")


def start_vllm_router(launch: Launch, routers: Path, connector: str, *more: str) -> Path:
    argv = [str(routers / "vllm-router"), "--vllm-pd-disaggregation", "--kv-connector", connector]
    argv += ["--host", launch.address(1), "--port", str(ROUTER_PORT), "--policy", "round_robin"]
    argv += ["--prometheus-host", launch.address(1), "--prometheus-port", "29100"]
    return launch.start(1, [*argv, "--worker-startup-check-interval", "1", *more])


def discovery(launch: Launch) -> tuple[str, str]:
    return "--vllm-discovery-address", f"{launch.address(1)}:{DISCOVERY_PORT}"


@pytest.mark.parametrize(
    ("mode", "prefills", "decodes"), [("READ", 1, 1), ("WRITE", 1, 1), ("READ", 2, 1), ("READ", 1, 2)]
)
def test_vllm_router_discovers_prefill_and_decode(
    mode: str, prefills: int, decodes: int, launch: Launch, routers: Path
) -> None:
    for number in range(1, prefills + decodes + 1):
        start_moriio(launch, number, "kv_producer" if number <= prefills else "kv_consumer", mode)
    log = start_vllm_router(launch, routers, "moriio", *discovery(launch))
    counts = {"Add Prefill": prefills, "Add Decode": decodes}
    launch.wait(lambda: all(log.read_text().count(word) >= n for word, n in counts.items()), "all workers named")
    launch.wait(lambda: launch.status("/health") == 200, "router healthy")
    check_generations(launch, rounds=3)
    taken = [transfers(launch, number, VLLM_PORT) for number in range(prefills + 1, prefills + decodes + 1)]
    assert sum(taken) == 12


@pytest.mark.parametrize(("connector", "name"), [("nixl", "NixlConnector"), ("mooncake", "MooncakeConnector")])
def test_vllm_router_joins_servers_that_it_is_told(connector: str, name: str, launch: Launch, routers: Path) -> None:
    start_vllm(launch, 1, "kv_producer", name)
    start_vllm(launch, 2, "kv_consumer", name)
    bootstrap = ["8998"] if connector == "mooncake" else []
    prefill = ["--prefill", f"http://{launch.address(1)}:{VLLM_PORT}", *bootstrap]
    decode = ["--decode", f"http://{launch.address(2)}:{VLLM_PORT}"]
    start_vllm_router(launch, routers, connector, *prefill, *decode)
    launch.wait(lambda: launch.status("/health") == 200, "router healthy")
    check_generations(launch)
    assert transfers(launch, 2, VLLM_PORT) == 4


def test_vllm_router_does_not_find_servers_of_the_old_generation(launch: Launch, routers: Path) -> None:
    for number, role in ((1, "kv_producer"), (2, "kv_consumer")):
        start_moriio(launch, number, role, "WRITE", "--catalogue-version", "0.19.1")
    log = start_vllm_router(launch, routers, "moriio", *discovery(launch))
    launch.wait(lambda: launch.status("/health") == 503, "router up without workers")
    launch.wait(lambda: "missing field `http_address`" in log.read_text(), "a registration that the router cannot read")
    assert "Add Prefill" not in log.read_text()
    assert launch.status("/health") == 503


def test_vllm_router_drops_a_server_of_the_other_transfer_mode(launch: Launch, routers: Path) -> None:
    start_moriio(launch, 1, "kv_producer", "READ")
    log = start_vllm_router(launch, routers, "moriio", *discovery(launch))
    launch.wait(lambda: "Add Prefill" in log.read_text(), "the first server named")
    start_moriio(launch, 2, "kv_consumer", "WRITE")
    launch.wait(lambda: "mismatch" in log.read_text().lower(), "a mismatch")
    assert launch.status("/health") == 503
