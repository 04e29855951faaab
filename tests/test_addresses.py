"""Addresses of nodes: one spelling each, duplicates in any, and those by which no other node reaches one."""

from __future__ import annotations

import pytest

from disagg_run import Node, SpecError, plan
from disagg_run.addresses import normal_address
from disagg_run.spec.node_contract import check_node_contract
from disagg_run.spec.values import BadValueError, node_list
from tests.planning.toy import HOST, spec


@pytest.mark.parametrize(
    ("given", "normal"),
    [
        ("fd00::1", "fd00::1"),
        ("FD00:0::1", "fd00::1"),
        ("[fd00:0:0:0:0:0:0:1]", "fd00::1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("10.0.0.1", "10.0.0.1"),
        ("Node-1.cluster", "node-1.cluster"),
    ],
)
def test_an_address_has_one_spelling(given: str, normal: str) -> None:
    assert normal_address(given) == normal


def test_nodes_are_kept_in_that_spelling_and_host_names_as_they_are_typed() -> None:
    assert node_list("a=[FD00:0::1],::FFFF:10.0.0.2,Node1") == (
        Node(name="a", address="fd00::1"),
        Node(address="10.0.0.2"),
        Node(name="Node1", address="Node1"),
    )


@pytest.mark.parametrize(
    ("nodes", "said"),
    [
        ("fd00::1,fd00:0::1", "the node address 'fd00::1' stands twice"),
        ("fd00::1,[FD00::1]", "the node address 'fd00::1' stands twice"),
        ("10.0.0.1,b=::ffff:10.0.0.1", "the node address '10.0.0.1' stands twice"),
        ("n1,N1", "the node address 'N1' stands twice"),
        ("n1,n1=10.0.0.1", "the node name 'n1' stands twice"),
        ("a=n1,n1", "the node address 'n1' stands twice"),
        ("fe80::1%eth0,fd00::2", "'fe80::1%eth0' is link-local: it means nothing without a network device"),
        ("[fe80::1]", "'[fe80::1]' is link-local"),
        ("fd00::1%eth0", "'fd00::1%eth0' names a zone, which is one machine's own"),
        ("::ffff:0.0.0.0", "'::ffff:0.0.0.0' is the address of no node"),
        ("ff02::1", "'ff02::1' is the address of no node"),
    ],
)
def test_duplicates_in_any_spelling_and_addresses_that_nobody_reaches_are_refused(nodes: str, said: str) -> None:
    with pytest.raises(BadValueError) as caught:
        node_list(nodes)
    assert str(caught.value).startswith(said)


@pytest.mark.parametrize(
    ("second", "said"),
    [
        ("FD00:0::1", "nodes 0 and 1 have the same address 'FD00:0::1'"),
        ("[fd00::2]", r"node 1: the address '\[fd00::2\]' stands in brackets: write fd00::2"),
        ("fe80::2%eth0", "node 1: 'fe80::2%eth0' is link-local"),
    ],
)
def test_a_program_s_own_nodes_are_held_to_the_same(second: str, said: str) -> None:
    with pytest.raises(SpecError, match=said):
        plan(spec(nodes=[Node(address="fd00::1"), Node(address=second)]), host=HOST)


def test_a_first_node_in_another_spelling_is_no_contradiction() -> None:
    asked = spec(nodes=[Node(address="fd00::1"), Node(address="fd00::2")])
    for said in ("FD00:0::1", "[fd00::1]"):
        check_node_contract(asked, {"MASTER_ADDR": said})
    with pytest.raises(SpecError, match=r"MASTER_ADDR says '\[fd00::2\]', but rank 0 is on 'fd00::1'"):
        check_node_contract(asked, {"MASTER_ADDR": "[fd00::2]"})
