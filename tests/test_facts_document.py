"""Facts as a document, and the commands that print and take it."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disagg_run import LaunchPlan, Nic, NodeFacts, SpecError
from disagg_run.cli.main import main
from disagg_run.facts_document import facts_by_rank, facts_to_json, read_facts
from disagg_run.spec.model import Node
from disagg_run.spec.options import OPTIONS


@pytest.fixture(autouse=True)
def _no_asking_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in {name for option in OPTIONS for name in option.contract} | {"DRY_RUN"}:
        monkeypatch.delenv(name, raising=False)


# --- the document -----------------------------------------------------------------------------------------------------


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
    nics=st.lists(NICS, max_size=2, unique_by=lambda nic: nic.name),
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
        ('{"n0": {"gpus": 8}, "n1": {}, "n0": {}}', "f.json: the key 'n0' stands twice in one object: keep one"),
        ('{"n0": {"gpus": 8, "gpus": 4}}', "f.json: the key 'gpus' stands twice in one object"),
        ('{"n0": {"nics": [{"name": "a"}, {"name": "b"}, {"name": "a"}]}}', "f.json: n0.nics[2] and [0] are both 'a'"),
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


# --- the command line -------------------------------------------------------------------------------------------------


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


def test_a_key_that_only_looks_like_a_number_is_no_rank() -> None:
    assert facts_by_rank({"²": NodeFacts(gpus=8)}, [Node(name="n0", address="n0")]) == ({}, ("²",))
