"""What is seen of a node: sockets and their owners, processes and their descent, checks before the start."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest

from disagg_run.errors import PreflightError
from disagg_run.planning.document import Group, PlannedProcess, RankPlan
from disagg_run.records import Preflight
from disagg_run.running import proctree, sockets
from disagg_run.running.launch import LaunchOptions, run
from disagg_run.running.node_setup import engine_python, prepare
from disagg_run.running.preflight import beside, check_node, held_port
from disagg_run.running.share import Share
from disagg_run.simulation.offline import OFFLINE
from disagg_run.spec.model import Node
from tests.running.launched import until
from tests.running.plans import addresses, plan


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-S", "-c", "import signal; signal.pause()"]) as process:
        yield process
        process.kill()


def on_address(address: str, port: int) -> list[sockets.ListeningSocket]:
    """Listeners of an address; another test may use the same port on its own address."""
    return [each for each in sockets.listening([port]) if each.address == address]


def test_a_listener_is_found_with_its_address_and_owner() -> None:
    address = addresses(1)[0]
    with socket.create_server((address, 0)) as server:
        port = server.getsockname()[1]
        (found,) = on_address(address, port)
        assert (found.port, found.uid) == (port, os.getuid())
        assert found.inode in (sockets.inodes_of(os.getpid()) or ())
        assert sockets.foreign([found], [os.getpid()]) == []
        assert sockets.foreign([found], [os.getppid()]) == [found]
        assert sockets.holder(found).startswith(f"pid {os.getpid()} of user ")
    assert on_address(address, port) == []


@pytest.mark.parametrize(
    ("bound", "asked", "takes"), [("0.0.0.0", "127.0.0.9", True), ("127.0.0.8", "127.0.0.9", False)]
)
def test_a_socket_of_all_addresses_takes_every_connection(bound: str, asked: str, takes: bool) -> None:
    found = sockets.ListeningSocket(address=bound, port=1, uid=0, inode=1)
    assert found.takes(asked) is takes


def test_an_ipv6_listener_is_found() -> None:
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as server:
        assert on_address("::1", server.getsockname()[1])


def test_an_address_is_local_where_it_can_be_bound() -> None:
    assert sockets.is_local("127.9.8.7")
    assert not sockets.is_local("192.0.2.1")
    assert not sockets.is_local("no-such-host.invalid")


def test_a_signal_hits_only_the_process_that_was_meant(child: subprocess.Popen[bytes]) -> None:
    stat = proctree.read(child.pid)
    assert stat is not None
    # Another process with the same pid, as it would be after the number was used again.
    assert proctree.send(attrs.evolve(stat, start=stat.start - 1), signal.SIGKILL) is False
    assert child.poll() is None
    assert proctree.send(stat, signal.SIGKILL) is True
    assert child.wait() == -signal.SIGKILL
    assert proctree.send(stat, signal.SIGKILL) is False


def test_descendants_are_found_across_sessions() -> None:
    code = "import subprocess,sys; subprocess.Popen(['sleep', '30'], start_new_session=True).wait()"
    with subprocess.Popen([sys.executable, "-S", "-c", code], start_new_session=True) as parent:

        def found() -> list[proctree.ProcessStat]:  # once it has its session, which it makes itself
            below = proctree.descendants(parent.pid, proctree.snapshot())
            return [each for each in below if each.sid == each.pid]

        (grandchild,) = until(found, "the grandchild in a session of its own")
        assert grandchild.ppid == parent.pid
        assert grandchild.sid == grandchild.pid != parent.pid
        proctree.send(grandchild, signal.SIGKILL)
        parent.wait()


def test_a_process_name_with_blanks_and_parentheses_is_read(tmp_path: Path) -> None:
    program = tmp_path / "a) R 1 (b"
    program.symlink_to("/bin/sleep")
    with subprocess.Popen([str(program), "30"]) as process:
        stat = until(lambda: proctree.read(process.pid), "the process")
        assert (stat.ppid, stat.pid) == (os.getpid(), process.pid)
        process.kill()


def test_a_held_port_of_a_run_of_ports_is_named_with_listener_and_holder() -> None:
    address = addresses(1)[0]
    with socket.create_server((address, 0)) as server:
        port = server.getsockname()[1]
        process = PlannedProcess(
            name="decode-0",
            kind="server",
            argv=("x",),
            ports={"http": 1, "handshake": port - 2},
            port_counts={"handshake": 4},
        )
        text = held_port(process, address)
        assert text.startswith(
            f"port {port} (handshake of decode-0) is held on {address} by pid {os.getpid()} of user "
        )
        assert held_port(process, address, family=[os.getpid()]) == ""
        assert held_port(process, addresses(1)[0]) == "", "another rank's address of this machine"


def test_a_simulation_whose_ports_are_held_is_told_how_to_run_beside() -> None:
    address = addresses(1)[0]
    held = PlannedProcess(name="decode-0", kind="server", argv=("x",))
    with socket.create_server((address, 0)) as server:
        held = attrs.evolve(held, ports={"http": server.getsockname()[1]})
        rank = RankPlan(rank=0, node=Node(address=address), groups=[Group(processes=[held])])
        for simulated, remedy in ((True, "run beside it: --nodes 127."), (False, "plan another port")):
            share = Share(
                rank=rank,
                digest="",
                ranks=6,
                engine="toy",
                served_name="Toy",
                simulated=simulated,
                first_address=address,
                remote={},
                listened=frozenset(),
            )
            with pytest.raises(PreflightError, match="is held on") as caught:
                asyncio.run(prepare(share, note=lambda *_, **__: None, warn=lambda *_, **__: None))
            assert f"end that process, or {remedy}" in str(caught.value)
            assert ("disagg-run engines toy" in str(caught.value)) is simulated


@pytest.mark.parametrize(
    ("address", "ranks", "nodes"),
    [
        ("127.0.0.1", 2, "127.1.0.1,127.1.0.2;"),
        ("127.0.0.3", 6, "127.1.0.1,127.1.0.2,127.1.0.3,127.1.0.4,…;"),
        ("127.1.0.2", 1, "127.2.0.1;"),
        ("127.255.0.2", 1, "127.56.0.1;"),
        ("::1", 1, "127.1.0.1;"),
    ],
)
def test_the_nodes_to_run_beside_are_none_of_the_runs_own(address: str, ranks: int, nodes: str) -> None:
    assert f"--nodes {nodes}" in beside(address, ranks, "toy")


def test_after_teardown_a_listener_of_ours_is_told_from_a_strangers() -> None:
    """The listener does not descend from the one who looks; its environment tells whose it is."""
    address = addresses(1)[0]
    look = """
import asyncio, sys
from disagg_run.planning.document import PlannedProcess
from disagg_run.running.teardown import open_ports
process = PlannedProcess(name="decode-0", kind="server", argv=("x",), ports={"http": int(sys.argv[2])})
(held,) = asyncio.run(open_ports([process], sys.argv[1], {"TOY_RUN": "7", "TOY_RANK": sys.argv[3]}, wait_s=0))
print(held.ours, held.text)
"""
    listen = """
import socket, sys
s = socket.create_server((sys.argv[1], 0))
print(s.getsockname()[1], flush=True)
s.accept()
"""
    env = {**os.environ, "TOY_RUN": "7", "TOY_RANK": "1"}
    with subprocess.Popen([sys.executable, "-c", listen, address], env=env, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        port = other.stdout.readline().strip()
        try:
            for rank, ours in (("1", True), ("0", False)):
                said = subprocess.run([sys.executable, "-c", look, address, port, rank], capture_output=True, text=True)
                assert said.stdout.startswith(f"{ours} port {port} of decode-0 is held by pid {other.pid} "), (
                    said.stderr
                )
        finally:
            other.kill()


def rank_with(*checks: Preflight) -> RankPlan:
    return RankPlan(rank=3, node=Node(address="127.0.0.1"), groups=[Group(preflight=checks, processes=[])])


CHECKS = [
    (Preflight(name="model", kind="path_exists", target="/no/such"), "there is no '/no/such' on this node"),
    (
        Preflight(name="gpu", kind="device_present", target="/dev/no-such"),
        "the device '/dev/no-such' is not on this node",
    ),
    (Preflight(name="ram", kind="memory_free", target=str(1 << 60)), "bytes of memory are available"),
    (Preflight(name="hf", kind="variable_set", target="NO_SUCH_NAME"), "the variable 'NO_SUCH_NAME' is not set"),
    (
        Preflight(name="v", kind="output_matches", argv=("echo", "1.2"), pattern=r"^1\.3$"),
        "the output of 'echo 1.2' (exit code 0) does not match",
    ),
    (Preflight(name="v", kind="output_matches", argv=("no-such-program",), pattern="x"), "cannot be run"),
]


@pytest.mark.parametrize(("check", "reason"), CHECKS, ids=[f"{check.kind}-{check.name}" for check, _ in CHECKS])
def test_a_required_check_that_fails_stops_the_run_and_a_waived_one_warns(check: Preflight, reason: str) -> None:
    warnings: list[str] = []
    with pytest.raises(PreflightError, match=rf"check '{check.name}' of rank 3: .*mend it") as caught:
        check_node(rank_with(attrs.evolve(check, remedy="mend it")), simulated=False, warn=warnings.append)
    assert reason in str(caught.value)
    check_node(rank_with(attrs.evolve(check, required=False)), simulated=False, warn=warnings.append)
    assert reason in warnings[0]
    check_node(rank_with(check), simulated=True, warn=warnings.append)
    assert len(warnings) == 1, "a stand-in needs no model, device or memory"


def test_checks_that_hold_let_the_run_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_NAME", "x")
    good = [
        Preflight(name="model", kind="path_exists", target=str(tmp_path)),
        Preflight(name="null", kind="device_present", target="/dev/null"),
        Preflight(name="ram", kind="memory_free", target="1"),
        Preflight(name="hf", kind="variable_set", target="A_NAME"),
        Preflight(name="v", kind="output_matches", argv=("echo", "1.2"), pattern=r"^1\.2$"),
        Preflight(name="p", kind="port_free", target="1"),
    ]
    warnings: list[str] = []
    check_node(rank_with(*good), simulated=False, warn=warnings.append)
    assert warnings == []


@pytest.mark.parametrize("words", [(), OFFLINE[2:3]], ids=["stand-in", "real-program"])
def test_a_simulation_whose_module_is_missing_is_refused_before_anything_starts(
    words: tuple[str, ...], tmp_path: Path
) -> None:
    router = PlannedProcess(name="router", kind="router", argv=("x",), exec=(*OFFLINE[:2], *words, "no_such.launch"))
    refused = r"router is simulated by the module 'no_such\.launch', and there is no 'no_such' here: .*\[routers\]"

    def checked(router: PlannedProcess) -> None:
        rank = RankPlan(rank=0, node=Node(address="127.0.0.1"), groups=[Group(processes=[router])])
        check_node(rank, simulated=True, warn=lambda _: None)

    with pytest.raises(PreflightError, match=refused):
        checked(router)
    with pytest.raises(PreflightError, match=refused):
        run(plan([("127.0.0.1", [router])], simulated=True), LaunchOptions(run_dir=tmp_path / "run"))
    assert not (tmp_path / "run").exists()
    (tmp_path / "no_such").mkdir()
    checked(attrs.evolve(router, env={"PYTHONPATH": str(tmp_path)}))


def test_patches_go_to_the_interpreter_of_the_server(tmp_path: Path) -> None:
    script = tmp_path / "toy-serve"
    script.write_text(f"#!{sys.executable}\n")
    script.chmod(0o755)
    shell = tmp_path / "toy-shell"
    shell.write_text("#!/bin/sh\n")
    shell.chmod(0o755)

    def found(*argv: str) -> str | None:
        env = {"PATH": f"{tmp_path}:{Path(sys.executable).parent}"}
        return engine_python(Group(processes=[PlannedProcess(name="d", kind="server", argv=argv, env=env)]))

    python = Path(sys.executable).name
    assert found(python, "-m", "toy") == str(Path(sys.executable))
    assert found("toy-serve") == sys.executable
    assert found("toy-shell") is None
    # Longer paths than a first line can have, and those with blanks, as pip writes them.
    shell.write_text(f"#!/bin/sh\n'''exec' \"{sys.executable}\" \"$0\" \"$@\"\n' '''\n")
    assert found("toy-shell") == sys.executable
    script.write_text(f"#!/usr/bin/env -S {python} -u\n")
    assert found("toy-serve") == str(Path(sys.executable))
    assert found("no-such-program") is None
