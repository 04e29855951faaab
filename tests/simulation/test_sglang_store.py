"""The stand-in of HiCache's store, and SGLang's servers that attach to it."""

from __future__ import annotations

import json
import signal
import socket
import socketserver
import threading
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import pytest

from disagg_run import LaunchSpec, Node, build_host, plan
from disagg_sglang import simulation, simulation_store
from tests.simulation.looking import listens

HOST = build_host()
MASTER, SERVER = "disagg_sglang.simulation_store", "disagg_sglang.simulation"
METADATA, METRICS, RPC, HTTP = 8080, 9003, 20061, 8000
QUICK = ("--load-s", "0")


def spec(*addresses: str, **fields: Any) -> LaunchSpec:
    settings = {"kv_offloading": "dram", "hicache_storage_backend": "mooncake", "mc_master_port": RPC}
    nodes = [Node(address=address) for address in addresses]
    return LaunchSpec(engine="sglang-disagg", model="DeepSeek-R1-0528", nodes=nodes, settings=settings, **fields)


def argv(process: str, address: str) -> tuple[str, ...]:
    """The plan's command of a process, where rank 0 has ``address``."""
    return plan(spec(address, "127.0.0.250"), host=HOST).process(process).argv


@pytest.fixture
def master(start: Callable[..., Any], next_address: Callable[[], str]) -> Any:
    """A master, started by the plan's argv."""
    address = next_address()
    started = start(MASTER, argv("mooncake-master", address), options=QUICK, address=address)
    started.wait_status(METRICS, "/get_all_segments")
    return started


def lines(stand_in: Any, path: str) -> list[str]:
    return str(stand_in.get(METRICS, path).text).split("\n")[:-1]


# --- the plan ----------------------------------------------------------------------------------------------------


def test_a_simulated_plan_differs_in_what_is_started_alone() -> None:
    nodes = ("10.0.0.1", "10.0.0.2")
    real, simulated = (plan(spec(*nodes, simulate=simulate), host=HOST) for simulate in (False, True))
    for name in real.process_names():
        assert attrs.evolve(simulated.process(name), exec=()) == real.process(name)
        assert simulated.process(name).exec
    assert simulated.warnings == ()


def test_the_stand_in_takes_its_own_options() -> None:
    asked = spec("127.0.0.1", "127.0.0.2", simulate=True, simulation={"mooncake-master": ("--exit-after-s", "3")})
    words = plan(asked, host=HOST).process("mooncake-master").exec
    assert words[:6] == ("@python", "-m", MASTER, "--exit-after-s", "3", "--")


# --- arguments ---------------------------------------------------------------------------------------------------

TYPES = {"port": "int32", "ttl": "uint64", "ratio": "double", "name_of_it": "string", "on": "bool"}


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["--port", "1"], {"port": "1"}),
        (["-port=1", "--port", "-2"], {"port": "-2"}),
        (["--name-of-it", "--port"], {"name_of_it": "--port"}),
        (["--on"], {"on": "true"}),
        (["--noon"], {"on": "false"}),
        (["--on=F"], {"on": "F"}),
        # The value of a boolean is never the next word.
        (["--on", "false"], {"on": "true"}),
        (["word", "--ratio", ".5", "--", "--port", "x"], {"ratio": ".5"}),
    ],
)
def test_flags_are_read_as_gflags_does(words: list[str], found: dict[str, str]) -> None:
    assert simulation_store.read_flags(words, TYPES) == found


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--no_such_flag", "1"], "ERROR: unknown command line flag 'no_such_flag'"),
        (["--no_such_flag=1"], "ERROR: unknown command line flag 'no_such_flag'"),
        (["--rpc_port"], "ERROR: flag '--rpc_port' is missing its argument"),
        (["--rpc_port", "abc"], "ERROR: illegal value 'abc' specified for int32 flag 'rpc_port'"),
        (["--client_ttl=1.5"], "ERROR: illegal value '1.5' specified for int64 flag 'client_ttl'"),
        (["--rpc_port=1", "--pending_task_timeout_sec=-1"], "ERROR: illegal value '-1' specified for uint64 flag"),
        (["--eviction_ratio", "5%"], "ERROR: illegal value '5%' specified for double flag 'eviction_ratio'"),
        (["--enable_ha=maybe"], "ERROR: illegal value 'maybe' specified for bool flag 'enable_ha'"),
    ],
)
def test_a_bad_flag_ends_it_with_the_parsers_message(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert simulation_store.main(["--", "mooncake_master", *words]) == 1
    assert message in capsys.readouterr().err


def test_without_the_flag_there_is_no_metadata_server() -> None:
    assert simulation_store.read_settings([]) == simulation_store.Settings(
        rpc=("0.0.0.0", 50051), metrics=("0.0.0.0", 9003), metadata=None
    )


# --- life --------------------------------------------------------------------------------------------------------


def test_it_opens_the_ports_that_the_plan_names_and_ends_when_told(master: Any) -> None:
    assert (master.get(METADATA, "/health").text, master.get(METRICS, "/health").json()["status"]) == ("OK", "ok")
    master.wait_for(lambda: listens(master.address, RPC), "the RPC port")
    master.process.send_signal(signal.SIGTERM)
    assert master.wait_exit() == 0


def run_here(main: Callable[[list[str]], int], words: Sequence[str], address: str, patch: pytest.MonkeyPatch) -> int:
    """The exit code of a stand-in that ends by itself, run by this process on a node's ``address``."""
    patch.setenv("DISAGG_RUN_NODE_ADDRESS", address)
    return main([*QUICK, "--", *words])


@pytest.mark.parametrize("taken", [METRICS, RPC])
def test_a_taken_port_ends_it(
    taken: int,
    next_address: Callable[[], str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    address = next_address()
    with socket.create_server((address, taken)):
        assert run_here(simulation_store.main, argv("mooncake-master", address), address, monkeypatch) == 1
    shown = capsys.readouterr().err
    assert f"on 0.0.0.0:{taken}: " in shown
    assert "address already in use" in shown


def test_a_taken_metadata_port_aborts_it(start: Callable[..., Any], next_address: Callable[[], str]) -> None:
    address = next_address()
    with socket.create_server((address, METADATA)):
        master = start(MASTER, argv("mooncake-master", address), options=QUICK, address=address)
        assert master.wait_exit() == -signal.SIGABRT
    assert "Failed to start HTTP metadata server" in master.log


# --- servers -----------------------------------------------------------------------------------------------------


def test_each_rank_of_a_prefill_server_gives_its_part_until_the_server_is_gone(
    master: Any, start: Callable[..., Any]
) -> None:
    server = start(SERVER, argv("prefill-0", master.address), options=QUICK, address=master.address)
    server.wait_status(HTTP, "/health")
    names = [f"{master.address}:{rank}" for rank in range(8)]
    assert lines(master, "/get_all_segments") == names
    assert f"master_total_capacity_bytes {64 * 2**30}" in lines(master, "/metrics")
    for name in names:
        assert master.get(METADATA, f"/metadata?key=mooncake%2Fram%2F{name}").json()["protocol"] == "tcp"
    server.end()
    master.wait_for(lambda: lines(master, "/get_all_segments") == [], "an empty store")


def test_a_server_without_its_store_dies(
    next_address: Callable[[], str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    address = next_address()
    assert run_here(simulation.main, argv("prefill-0", address), address, monkeypatch) == 1
    shown = capsys.readouterr().err
    assert "retry 20/20" in shown
    assert "RuntimeError: Failed to setup Mooncake store, error code: -1" in shown


def test_B09_a_server_is_not_content_with_somebody_elses_service(
    next_address: Callable[[], str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    address = next_address()

    class Hangup(socketserver.BaseRequestHandler):
        """Takes a connection and ends it."""

    with socketserver.ThreadingTCPServer((address, RPC), Hangup) as foreign:
        threading.Thread(target=foreign.serve_forever, daemon=True).start()
        words = with_store(argv("prefill-0", address), metadata_server="P2PHANDSHAKE")
        assert run_here(simulation.main, words, address, monkeypatch) == 1
        foreign.shutdown()
    assert f"the master at {address}:{RPC} says: connection closed" in capsys.readouterr().err


def with_store(words: Sequence[str], text: str = "", **changes: str) -> list[str]:
    """A server's words with another description of its store, or some of its keys changed."""
    changed = list(words)
    at = changed.index("--hicache-storage-backend-extra-config") + 1
    changed[at] = text or json.dumps({**json.loads(changed[at]), **changes})
    return changed


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("{", "ValueError: Invalid backend extra config JSON"),
        ('{"master_server_address": "h:1", "global_segment_size": "64GiB"}', "Invalid global_segment_size: "),
    ],
)
def test_a_store_that_is_described_wrongly_ends_the_server(
    config: str,
    message: str,
    next_address: Callable[[], str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    address = next_address()
    words = with_store(argv("prefill-0", address), config)
    assert run_here(simulation.main, words, address, monkeypatch) == 1
    assert message in capsys.readouterr().err


def test_a_server_outlives_its_store(master: Any, start: Callable[..., Any]) -> None:
    server = start(SERVER, argv("prefill-0", master.address), options=QUICK, address=master.address)
    server.wait_status(HTTP, "/health")
    master.end()
    server.wait_log("the master of the store is gone")
    assert server.status(HTTP, "/health") == 200
