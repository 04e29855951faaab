"""Node facts: read from trees of files that stand for nodes, written and read as a document, and used by plans."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from disagg_run import LaunchPlan, Nic, NodeFacts, SpecError
from disagg_run.cli.main import main
from disagg_run.facts_document import facts_by_rank, facts_to_json, read_facts
from disagg_run.running.nodefacts import gather
from disagg_run.running.own_address import OwnAddress, kernel_route, own_address, unusable
from disagg_run.spec.model import Node
from disagg_run.spec.options import OPTIONS

ADDRESSES = {
    "lo": ("127.0.0.1", "::1"),
    "eth0": ("10.2.0.7", "fe80::1"),
    "ens9": ("192.168.10.7",),
}


@pytest.fixture(autouse=True)
def _no_asking_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in {name for option in OPTIONS for name in option.contract} | {"DRY_RUN"}:
        monkeypatch.delenv(name, raising=False)


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


# --- the node's own address --------------------------------------------------------------------------------------

#: Fault B20's input.
B20 = NodeFacts(
    hostname="n0",
    addresses={"eth9": ["169.254.3.1"], "eth0": ["10.2.0.7"], "docker0": ["172.17.0.1"], "lo": ["127.0.0.1"]},
)


def test_unusable_and_bridge_addresses_are_never_chosen() -> None:
    """Fault B20: the first address of the host's list was taken, link-local or not."""
    assert own_address(B20) == OwnAddress(address="10.2.0.7", rule="the only usable one")
    for answer in ("169.254.3.1", "172.17.0.1", "127.0.0.1", "0.0.0.0", ""):
        assert own_address(B20, peers=["10.9.0.1"], route=lambda peer, a=answer: a).address == "10.2.0.7"  # type: ignore[misc]


def test_the_named_device_comes_first_then_the_route_to_the_peers_then_the_default_route() -> None:
    """Fault B20: show which rule chose the address."""
    facts = attrs.evolve(B20, addresses={**B20.addresses, "ens9": ["192.168.10.7"]}, default_interface="ens9")

    def route(peer: str) -> str:
        return {"10.2.0.8": "10.2.0.7"}.get(peer, "")

    peers = ["203.0.113.9", "10.2.0.8"]
    chosen = own_address(facts, interface="ens9", peers=peers, route=route)
    assert (chosen.address, chosen.rule) == ("192.168.10.7", "network device ens9, as asked for")
    chosen = own_address(facts, peers=peers, route=route)
    assert (chosen.address, chosen.rule) == ("10.2.0.7", "route to 10.2.0.8")
    chosen = own_address(facts, peers=["203.0.113.9"], route=route)
    assert (chosen.address, chosen.rule) == ("192.168.10.7", "default route's network device ens9")


def test_where_no_address_or_several_would_do_the_error_says_what_is_against_each() -> None:
    several = NodeFacts(hostname="n0", addresses={"a": ["10.0.0.1"], "b": ["10.1.0.1"], "docker0": ["172.17.0.1"]})
    with pytest.raises(SpecError) as error:
        own_address(several)
    assert "node 'n0' has 2 usable addresses (10.0.0.1 is usable; 10.1.0.1 is usable" in str(error.value)
    assert "172.17.0.1 is of docker0, a container bridge" in str(error.value)
    with pytest.raises(SpecError, match=r"no usable addresses \(127\.0\.0\.1 is loopback\): name its network device"):
        own_address(NodeFacts(hostname="n0", addresses={"lo": ["127.0.0.1"]}))
    with pytest.raises(SpecError, match=r"no network device 'eth1'.*: did you mean 'eth9'\?"):
        own_address(B20, interface="eth1")
    with pytest.raises(SpecError, match=r"'eth9' has no usable address \(169\.254\.3\.1 is link-local\)"):
        own_address(B20, interface="eth9")


def test_a_hosts_own_bridge_may_carry_its_address() -> None:
    facts = NodeFacts(addresses={"br0": ["10.0.0.1"], "br-0a1b2c3d4e5f": ["172.18.0.1"], "veth12": ["172.18.0.2"]})
    assert own_address(facts).address == "10.0.0.1"


def test_the_kernel_is_asked_for_the_route_and_nothing_is_sent() -> None:
    assert kernel_route("127.0.0.5") == "127.0.0.1"
    assert kernel_route("not a host name") == ""


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("10.0.0.1", ""),
        ("fd00::1", ""),
        ("127.0.0.2", "is loopback"),
        ("::1", "is loopback"),
        ("fe80::1", "is link-local"),
        ("169.254.1.1", "is link-local"),
        ("0.0.0.0", "is unspecified"),
        ("224.0.0.1", "is multicast"),
        ("n0", "is no address"),
    ],
)
def test_what_is_against_an_address(address: str, why: str) -> None:
    assert unusable(address) == why


# --- the document ------------------------------------------------------------------------------------------------

NAMES = st.sampled_from(["n0", "eth0", "10.0.0.1", "é", '"', "a b", "\n", "0"])
TEXTS = st.just("") | NAMES
PORTS = st.integers(1, 65535)
NICS = st.builds(
    Nic,
    name=NAMES,
    driver=TEXTS,
    state=st.sampled_from(["ACTIVE", "DOWN", ""]),
    netdev=TEXTS,
    addresses=st.lists(NAMES, max_size=2),
    gids=st.dictionaries(st.integers(0, 255), NAMES, max_size=2),
)
FACTS = st.builds(
    NodeFacts,
    hostname=TEXTS,
    addresses=st.dictionaries(NAMES, st.lists(NAMES, max_size=2).map(tuple), max_size=2),
    default_interface=TEXTS,
    gpus=st.none() | st.integers(0, 16),
    gpu_vendor=st.sampled_from(["amd", "nvidia", ""]),
    nics=st.lists(NICS, max_size=2),
    ephemeral_ports=st.tuples(PORTS, PORTS).map(lambda pair: tuple(sorted(pair))),
    listening_ports=st.lists(PORTS, max_size=2),
    memory_bytes=st.none() | st.integers(0, 2**42),
    container_tool=st.sampled_from(["docker", "podman", ""]),
    engine_version=TEXTS,
    links=st.dictionaries(NAMES, NAMES, max_size=2),
)


@given(facts=st.dictionaries(NAMES, FACTS, max_size=2), indent=st.sampled_from([None, 1]))
def test_facts_come_back_from_their_document_as_they_were(facts: dict[str, NodeFacts], indent: int | None) -> None:
    assert read_facts(facts_to_json(facts, indent=indent), "facts.json") == facts


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[]", "f.json is no JSON object: give facts by rank or node name"),
        ("{", "f.json is no JSON: "),
        ('{"n0": 1}', "f.json: n0: 1 stands where an object is expected"),
        ('{"n0": {"gpu": 8}}', "f.json: n0: unknown key 'gpu': did you mean 'gpus'?"),
        ('{"n0": {"gpus": "8"}}', "f.json: n0.gpus: '8' is no whole number"),
        ('{"n0": {"gpus": true}}', "f.json: n0.gpus: True is no whole number"),
        ('{"n0": {"gpu_vendor": "intel"}}', "f.json: n0.gpu_vendor: 'intel' is not one of 'amd', 'nvidia', ''"),
        ('{"n0": {"nics": [{"driver": "x"}]}}', "f.json: n0.nics[0]: the key 'name' is missing"),
        ('{"n0": {"nics": [{"name": "a", "gids": {"x": "::1"}}]}}', "f.json: n0.nics[0].gids: invalid literal"),
        ('{"n0": {"addresses": {"eth0": "10.0.0.1"}}}', "f.json: n0.addresses.eth0: '10.0.0.1' is no list"),
        ('{"n0": {"listening_ports": [0]}}', "f.json: n0.listening_ports[0]: 0 is no port"),
        ('{"n0": {"ephemeral_ports": [9, 8]}}', "f.json: n0.ephemeral_ports: [9, 8] is no first and last port"),
    ],
)
def test_a_document_that_does_not_fit_is_one_line(text: str, reason: str) -> None:
    with pytest.raises(SpecError) as error:
        read_facts(text, "f.json")
    assert str(error.value).startswith(reason)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*"ab", "gpus", "nics", "links"]), inner)
    ),
    max_leaves=8,
)


@given(data=JSON)
def test_any_json_is_facts_or_refused(data: Any) -> None:
    try:
        found = read_facts(json.dumps(data), "f.json")
    except SpecError:
        return
    assert all(isinstance(each, NodeFacts) for each in found.values())


def test_facts_are_matched_by_rank_name_address_and_the_hosts_own_addresses() -> None:
    nodes = (
        Node(name="n0", address="10.0.0.1"),
        Node(address="10.0.0.2"),
        Node(address="10.0.0.3"),
        Node(address="n3"),
    )
    found = {
        "n0": NodeFacts(gpus=1),
        "10.0.0.2": NodeFacts(gpus=2),
        "host-c": NodeFacts(gpus=3, addresses={"eth0": ["10.0.0.3"]}),
        "n3.cluster.example": NodeFacts(gpus=4),
        "n9": NodeFacts(gpus=9),
        "17": NodeFacts(gpus=9),
    }
    by_rank, left = facts_by_rank(found, nodes)
    assert {rank: facts.gpus for rank, facts in by_rank.items()} == {0: 1, 1: 2, 2: 3, 3: 4}
    assert left == ("n9", "17")
    assert facts_by_rank({"1": NodeFacts(gpus=5)}, ())[0] == {1: NodeFacts(gpus=5)}
    with pytest.raises(SpecError, match="the facts of 'n0' and '0' are both of rank 0: keep one"):
        facts_by_rank({"n0": NodeFacts(), "0": NodeFacts()}, nodes)


# --- the command line --------------------------------------------------------------------------------------------


def ran(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(arguments)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_facts_of_this_node_are_printed_in_the_form_that_a_plan_takes(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    code, out, err = ran(capsys, "facts", "--format", "json")
    assert (code, err) == (0, "")
    assert list(read_facts(out, "-")) == [socket.gethostname()]
    table = ran(capsys, "facts")[1]
    assert f"host             {socket.gethostname()}" in table
    file = tmp_path / "here.json"
    file.write_text(out)
    asked = [
        "--engine",
        "atom-disagg",
        "--model",
        "DeepSeek-V4-Pro",
        "--nodes",
        f"{socket.gethostname()}=10.0.0.1,10.0.0.2",
    ]
    assert ran(capsys, "plan", *asked, "--facts", str(file))[0] == 0


def test_only_the_address_for_a_job_script(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = ran(capsys, "facts", "--address", "--interface", "lo")
    assert (code, out) == (3, "")
    assert "'lo' has no usable address (127.0.0.1 is loopback" in err


ASKED = ["--engine", "atom-disagg", "--model", "DeepSeek-V4-Pro", "--nodes", "n0=10.0.0.1,n1=10.0.0.2"]


def test_a_plan_uses_the_facts_that_it_is_given(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    nic = Nic(name="rdma0", driver="ionic", state="ACTIVE", netdev="ens9", addresses=["192.168.10.2"])
    file = tmp_path / "facts.json"
    # Port 8020 is where decode would listen by itself.
    file.write_text(facts_to_json({"n1": NodeFacts(nics=[nic], listening_ports=[8020])}))
    more = ["--facts", str(file), "--ib-devices", "rdma0", "--format", "json"]
    code, out, err = ran(capsys, "plan", *ASKED, *more)
    assert (code, "no node" in err) == (0, False)
    decode = LaunchPlan.from_json(out).process("decode-0")
    assert decode.env["ATOM_HOST_IP"] == "192.168.10.2"
    assert decode.ports["http"] != 8020
    plain = LaunchPlan.from_json(ran(capsys, "plan", *ASKED, "--format", "json")[1]).process("decode-0")
    assert (plain.env["ATOM_HOST_IP"], plain.ports["http"]) == ("10.0.0.2", 8020)


def test_a_node_that_is_known_to_have_too_few_gpus_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "facts.json"
    file.write_text(facts_to_json({"n0": NodeFacts(gpus=8), "n1": NodeFacts(gpus=4)}))
    code, _, err = ran(capsys, "plan", *ASKED, "--facts", str(file))
    assert code == 5
    assert "decode-0 needs GPU 7 of node 'n1' (rank 1), which has 4 GPUs" in err
    assert ran(capsys, "plan", *ASKED[:4], "--simulate", "--facts", str(file))[0] == 0


def test_facts_of_a_node_that_the_launch_has_not_are_remarked_on(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    first, second = tmp_path / "a.json", tmp_path / "b.json"
    first.write_text(facts_to_json({"n7": NodeFacts()}))
    second.write_text(facts_to_json({"n7": NodeFacts(gpus=8)}))
    code, _, err = ran(capsys, "plan", *ASKED, "--facts", str(first))
    assert (code, err) == (0, "disagg-run: warning: a.json has facts of n7, which is no node of this launch\n")
    code, _, err = ran(capsys, "plan", *ASKED, "--facts", str(first), "--facts", str(second))
    assert (code, "two facts files speak of 'n7' and differ" in err) == (3, True)
    code, _, err = ran(capsys, "plan", *ASKED, "--facts", str(tmp_path / "none.json"))
    assert (code, "cannot be read: no such file" in err) == (3, True)


@pytest.mark.parametrize("nodes", ["10.0.0.1,,10.0.0.3", "10.0.0.1,"])
def test_an_empty_address_is_refused_when_the_plan_is_made(
    nodes: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fault B21: a failed lookup gave an empty address, and the KV transfer an empty proxy."""
    monkeypatch.setenv("IPADDRS", nodes)
    code, _, err = ran(capsys, "plan", *ASKED[:4])
    assert code == 3
    assert err.startswith("disagg-run: error: environment variable IPADDRS: '' is neither an address nor a host name")
