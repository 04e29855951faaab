"""Which of its addresses a node tells others, and by what rule."""

from __future__ import annotations

import attrs
import pytest

from disagg_run import NodeFacts, SpecError
from disagg_run.running.own_address import OwnAddress, kernel_route, own_address, unusable

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
