"""Which of a node's addresses other nodes should use, and the rule that chose it."""

from __future__ import annotations

import difflib
import ipaddress
import re
import socket
from collections.abc import Callable, Iterable

import attrs

from disagg_run.errors import SpecError
from disagg_run.facts import NodeFacts

#: Network devices that container tools make for themselves; a host's own bridge (br0) is not among them.
_BRIDGES = re.compile(r"docker\d+|br-[0-9a-f]{6,}|virbr\d+|podman\d+|cni\d+|cni-.*|lxcbr\d+|lxdbr\d+|veth.*|flannel.*")
#: Any port will do: nothing is sent.
_PORT = 9


@attrs.frozen(kw_only=True)
class OwnAddress:
    """A node's address."""

    address: str
    #: What chose it: ``route to 10.0.0.2``.
    rule: str


def own_address(
    facts: NodeFacts,
    *,
    interface: str | None = None,
    peers: Iterable[str] = (),
    route: Callable[[str], str] | None = None,
) -> OwnAddress:
    """The address of the node with ``facts``: of the named device, else by the route to the peers, else of the
    default route's device, else the only usable one.

    Loopback, link-local and unspecified addresses, and those of container bridges, are never chosen. ``route``: gives
    this machine's source address towards a peer, "" = no route; None = the kernel's answer. Raises SpecError where
    nothing is usable or several are, naming each with what is against it.
    """
    if interface is not None:
        return OwnAddress(address=_of_interface(facts, interface), rule=f"network device {interface}, as asked for")
    bad = {address: why for address, why in _candidates(facts) if why}
    for peer in peers:
        address = (route or kernel_route)(peer)
        if address and not unusable(address) and address not in bad:
            return OwnAddress(address=address, rule=f"route to {peer}")
    good = [address for address, why in _candidates(facts) if not why]
    on_default = [each for each in facts.addresses.get(facts.default_interface, ()) if each in good]
    if on_default:
        return OwnAddress(address=on_default[0], rule=f"default route's network device {facts.default_interface}")
    if len(good) == 1:
        return OwnAddress(address=good[0], rule="the only usable one")
    shown = "; ".join(f"{address} {why or 'is usable'}" for address, why in _candidates(facts)) or "it has none"
    raise SpecError(
        f"node {facts.hostname!r} has {len(good) or 'no'} usable address{'es' if len(good) != 1 else ''} ({shown})",
        remedy="name its network device with --interface, or a peer with --peer",
    )


def unusable(address: str) -> str:
    """What is against an address for other nodes' use; "" = nothing."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return "is no address"
    kinds = ("unspecified", "loopback", "link_local", "multicast")
    return next((f"is {kind.replace('_', '-')}" for kind in kinds if getattr(parsed, f"is_{kind}")), "")


def kernel_route(peer: str) -> str:
    """This machine's source address towards ``peer``, by its routing table; "" = no route. Nothing is sent."""
    try:
        family, kind, proto, _, place = socket.getaddrinfo(peer, _PORT, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, proto) as probe:
            probe.connect(place)
            return str(probe.getsockname()[0]).partition("%")[0]
    except OSError:
        return ""


def _candidates(facts: NodeFacts) -> list[tuple[str, str]]:
    """Every address with what is against it."""
    found = []
    for name, addresses in facts.addresses.items():
        for address in addresses:
            bridge = f"is of {name}, a container bridge" if _BRIDGES.fullmatch(name) else ""
            found.append((address, unusable(address) or bridge))
    return found


def _of_interface(facts: NodeFacts, interface: str) -> str:
    if interface not in facts.addresses:
        near = difflib.get_close_matches(interface, facts.addresses, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise SpecError(
            f"node {facts.hostname!r} has no network device {interface!r} with an address",
            remedy=f"{hint}it has {', '.join(facts.addresses) or 'none'}",
        )
    good = [address for address in facts.addresses[interface] if not unusable(address)]
    if not good:
        against = "; ".join(f"{address} {unusable(address)}" for address in facts.addresses[interface])
        raise SpecError(f"network device {interface!r} has no usable address ({against})", remedy="name another one")
    return good[0]
