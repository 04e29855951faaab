"""Node facts: read from trees of files that stand for nodes, written and read as a document, and used by plans."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import pytest

from disagg_run import Nic, NodeFacts
from disagg_run.running.nodefacts import gather

ADDRESSES = {
    "lo": ("127.0.0.1", "::1"),
    "eth0": ("10.2.0.7", "fe80::1"),
    "ens9": ("192.168.10.7",),
}


def write(root: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


def look(root: Path, **more: Any) -> NodeFacts:
    given: dict[str, Any] = {"interfaces": lambda: ADDRESSES, "hostname": "n7", "path": "/usr/bin:/usr/local/bin"}
    return gather(root, **{**given, **more})


ROUTES = """\
Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT
ens9\t00000000\t010AA8C0\t0003\t0\t0\t200\t00000000\t0\t0\t0
eth0\t00000000\t0100020A\t0003\t0\t0\t100\t00000000\t0\t0\t0
eth1\t00000000\t00000000\t0201\t0\t0\t0\t00000000\t0\t0\t0
eth0\t0000020A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0
"""

NOWHERE = "0" * 32

ROUTES_6 = f"""\
{NOWHERE} 00 {NOWHERE} 00 fd000000000000000000000000000001 00000400 00000002 00000000 00000003     ens9
{NOWHERE} 00 {NOWHERE} 00 {NOWHERE} ffffffff 00000001 00000000 00200200       lo
"""

TCP = """\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 00000000:1F40 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1 1 0 100 0 0 10 0
   1: 0100007F:1F4A 0100007F:1F40 01 00000000:00000000 00:00000000 00000000     0        0 2 1 0 100 0 0 10 0
"""

TCP_6 = """\
  sl  local_address                         remote_address                        st tx_queue rx_queue tr tm->when
   0: 00000000000000000000000000000000:07D0 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000
"""


def test_what_proc_says_of_routes_ports_and_memory(tmp_path: Path) -> None:
    files = {
        "proc/net/route": ROUTES,
        "proc/net/ipv6_route": ROUTES_6,
        "proc/net/tcp": TCP,
        "proc/net/tcp6": TCP_6,
        "proc/sys/net/ipv4/ip_local_port_range": "20000\t29999\n",
        "proc/meminfo": "MemTotal:       24684096 kB\nMemFree: 1 kB\n",
    }
    facts = look(write(tmp_path, files))
    assert facts.hostname == "n7"
    assert dict(facts.addresses) == ADDRESSES
    assert facts.default_interface == "eth0"
    assert facts.listening_ports == (2000, 8000)
    assert facts.ephemeral_ports == (20000, 29999)
    assert facts.memory_bytes == 24684096 * 1024


def test_the_default_route_may_be_of_ipv6_alone(tmp_path: Path) -> None:
    heading = ROUTES.splitlines()[0] + "\n"
    assert (
        look(write(tmp_path, {"proc/net/route": heading, "proc/net/ipv6_route": ROUTES_6})).default_interface == "ens9"
    )


def test_what_cannot_be_read_stays_unknown(tmp_path: Path) -> None:
    facts = look(tmp_path, interfaces=dict)
    assert facts == NodeFacts(hostname="n7")
    assert (facts.gpus, facts.memory_bytes, facts.nics, facts.container_tool) == (None, None, (), "")


def test_rdma_devices_with_driver_state_network_device_and_gids(tmp_path: Path) -> None:
    files = {}
    for name in ("rdma10", "rdma2"):
        device = f"sys/class/infiniband/{name}"
        files[f"{device}/ports/1/state"] = "4: ACTIVE\n" if name == "rdma2" else "1: DOWN\n"
        files[f"{device}/ports/1/gids/0"] = "fe80:0000:0000:0000:0a00:00ff:fe00:0001\n"
        files[f"{device}/ports/1/gids/1"] = "0000:0000:0000:0000:0000:ffff:c0a8:0a07\n"
        files[f"{device}/ports/1/gids/2"] = "0000:0000:0000:0000:0000:0000:0000:0000\n"
    files["sys/class/infiniband/rdma2/device/net/ens9/mtu"] = "9000\n"
    files["sys/class/infiniband/rdma10/device/net/a/mtu"] = "9000\n"
    files["sys/class/infiniband/rdma10/device/net/b/mtu"] = "9000\n"
    write(tmp_path, files)
    (tmp_path / "sys/class/infiniband/rdma2/device/driver").symlink_to("../../../bus/pci/drivers/ionic")
    first, second = look(tmp_path).nics
    gids = {0: "fe80:0000:0000:0000:0a00:00ff:fe00:0001", 1: "0000:0000:0000:0000:0000:ffff:c0a8:0a07"}
    assert first == Nic(
        name="rdma2", driver="ionic", state="ACTIVE", netdev="ens9", addresses=["192.168.10.7"], gids=gids
    )
    # Two network devices behind one adapter: which is the port's is not known, so it stays unknown.
    assert second == Nic(name="rdma10", state="DOWN", gids=gids)
    write(tmp_path, {"sys/class/infiniband/rdma10/ports/1/gid_attrs/ndevs/0": "eth0\n"})
    assert look(tmp_path).nics[1].addresses == ADDRESSES["eth0"]


def test_amd_gpus_are_the_nodes_with_a_gpu_id_and_only_where_the_driver_can_be_opened(tmp_path: Path) -> None:
    nodes = "sys/class/kfd/kfd/topology/nodes"
    write(tmp_path, {f"{nodes}/{index}/gpu_id": f"{0 if index < 2 else 4711 + index}\n" for index in range(10)})
    assert look(tmp_path).gpus is None
    write(tmp_path, {"dev/kfd": ""})
    assert (look(tmp_path).gpus, look(tmp_path).gpu_vendor) == (8, "amd")


def test_nvidia_gpus_are_the_drivers(tmp_path: Path) -> None:
    write(tmp_path, {f"proc/driver/nvidia/gpus/0000:{bus}:00.0/information": "Model: x\n" for bus in ("18", "2a")})
    assert (look(tmp_path).gpus, look(tmp_path).gpu_vendor) == (2, "nvidia")


def test_the_container_tool_is_one_that_can_be_run(tmp_path: Path) -> None:
    write(tmp_path, {"usr/bin/docker": "", "usr/local/bin/podman": ""})
    assert look(tmp_path).container_tool == ""
    (tmp_path / "usr/local/bin/podman").chmod(0o755)
    assert look(tmp_path).container_tool == "podman"
    (tmp_path / "usr/bin/docker").chmod(0o755)
    assert look(tmp_path).container_tool == "docker"
    assert look(tmp_path, path="").container_tool == ""


def test_the_snapshot_of_a_model_is_the_one_that_refs_main_names(tmp_path: Path) -> None:
    """Fault R28: the first one that a listing showed was taken."""
    cache = "models/models--maker--Toy-7B"
    write(tmp_path, {f"{cache}/snapshots/{each}/config.json": "{}" for each in ("aaa", "bbb")})
    write(tmp_path, {f"{cache}/refs/main": "bbb\n", "models/models--maker--Toy-8B/refs/main": "gone"})
    expected = {"/models/models--maker--Toy-7B": "/models/models--maker--Toy-7B/snapshots/bbb"}
    assert dict(look(tmp_path, models=[f"/{cache}/"]).links) == expected
    assert dict(look(tmp_path, models=["/models/Toy-7B", "/models/Toy-8B"]).links) == expected


def test_the_engine_version_is_that_of_the_first_distribution_that_is_installed(tmp_path: Path) -> None:
    assert look(tmp_path, distributions=["no-such-thing", "attrs"]).engine_version == attrs.__version__
    assert look(tmp_path, distributions=["no-such-thing"]).engine_version == ""


def test_this_machine_can_be_looked_at_without_any_tool(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault B21: an image without iproute made the address empty, without a message."""
    monkeypatch.setenv("PATH", "/nonexistent")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        facts = gather()
        assert listener.getsockname()[1] in facts.listening_ports
    assert facts.hostname == socket.gethostname()
    assert "127.0.0.1" in facts.addresses["lo"]
    assert not any("%" in each for addresses in facts.addresses.values() for each in addresses)
    assert facts.memory_bytes is not None
    assert facts.memory_bytes > 2**28
