"""RDMA devices of a node: which carry KV and collectives, their address, GID and route."""

from __future__ import annotations

import ipaddress

import attrs

from disagg_run.context import RankContext
from disagg_run.errors import SpecError
from disagg_run.facts import Nic
from disagg_run.records import Command, ServiceProcess
from disagg_run.sources import CORE_DEFAULT, Layer, Source

#: Name of the waiver for nodes without RDMA devices.
NO_DEVICE = "ib-devices"

#: Where the public clusters have their links of two addresses.
_LINKS = ipaddress.ip_network("192.168.0.0/16")


def devices(ctx: RankContext) -> tuple[tuple[str, ...], Source]:
    """The RDMA devices in rail order and who named them: the user, else all of the node that are up.

    () = none are known of.
    """
    if ctx.spec.ib_devices:
        return ctx.spec.ib_devices, ctx.spec.source("ib_devices")
    names = tuple(nic.name for nic in _usable(ctx))
    return names, Source(layer=Layer.ENGINE, plugin=ctx.engine.name, why="devices of the node that are up")


def _usable(ctx: RankContext) -> tuple[Nic, ...]:
    nics = ctx.facts.nics if ctx.facts else ()
    return tuple(nic for nic in nics if nic.state in ("ACTIVE", ""))


def check_devices(ctx: RankContext) -> None:
    """Refuse a node that is known to have no RDMA device: an empty list would reach the engine's variables (R27)."""
    if ctx.facts is None or ctx.spec.simulate or NO_DEVICE in ctx.spec.waive or devices(ctx)[0]:
        return
    down = ", ".join(f"{nic.name} is {nic.state}" for nic in ctx.facts.nics) or "it has none"
    raise SpecError(
        f"no RDMA device is known of node {ctx.node.name or ctx.node.address!r} (rank {ctx.rank}), but {ctx.connector}"
        f" needs one: {down}",
        remedy=f"name them with --ib-devices, or let it through with --waive {NO_DEVICE}",
    )


def first_device(ctx: RankContext) -> Nic | None:
    """The device that carries KV, as far as it is known."""
    names, _ = devices(ctx)
    for nic in ctx.facts.nics if ctx.facts else ():
        if names and nic.name == names[0]:
            return nic
    return None


def data_address(ctx: RankContext) -> tuple[str, str]:
    """The address by which peers reach the node's KV, and why: that of the first RDMA device, else the node's own."""
    nic = first_device(ctx)
    if nic is not None and nic.addresses:
        address = min(nic.addresses, key=lambda each: ":" in each)
        return address, f"address of {nic.netdev or 'the network device'} behind {nic.name}"
    return ctx.node.address, "the node's address"


def gid_index(ctx: RankContext) -> tuple[int, str]:
    """The GID index of the devices and why: the first that is routable on all of them.

    1 where their GIDs are not known: 0 is link-local on the clusters of the public recipes.
    """
    names, _ = devices(ctx)
    nics = [nic for nic in (ctx.facts.nics if ctx.facts else ()) if nic.name in names]
    tables = [nic.gids for nic in nics]
    common = set.intersection(*(set(gids) for gids in tables)) if tables else set()
    routable = sorted(index for index in common if all(_routable(gids[index]) for gids in tables))
    if not routable or 1 in routable:
        return 1, "0 is link-local"
    return routable[0], f"first GID that is routable on {', '.join(nic.name for nic in nics)}"


def _routable(gid: str) -> bool:
    try:
        address = ipaddress.IPv6Address(gid)
    except ValueError:
        return False
    return not (address.is_link_local or address.is_unspecified or address.is_loopback)


@attrs.frozen(kw_only=True)
class Route:
    """A route to the RDMA network by a link of two addresses (/31)."""

    network: str
    #: The switch's end of the link.
    peer: str
    #: Network device.
    device: str


def route(ctx: RankContext) -> Route | None:
    """The route that a node needs where its RDMA device has an address of 192.168.*; None where it needs none.

    The peer on a /31 link is the host's address with its last bit turned over; setting that bit instead would give odd
    hosts their own address (R23).
    """
    if ctx.spec.simulate or not ctx.setting("rdma_route", True):
        return None
    nic = first_device(ctx)
    address, _ = data_address(ctx)
    try:
        host = ipaddress.IPv4Address(address)
    except ValueError:
        return None
    if nic is None or not nic.netdev or address not in nic.addresses or host not in _LINKS:
        return None
    network = ipaddress.ip_network(f"{host}/24", strict=False)
    return Route(network=str(network), peer=str(ipaddress.IPv4Address(int(host) ^ 1)), device=nic.netdev)


def setup(ctx: RankContext) -> tuple[ServiceProcess, ...]:
    """The setup process that makes the route."""
    way = route(ctx)
    if way is None:
        return ()
    program = ("ip", "route", "replace", way.network, "via", way.peer, "dev", way.device)
    return (ServiceProcess(name="rdma-route", kind="setup", command=Command(program=program)),)


def chosen(ctx: RankContext, name: str, plugin: str) -> Source:
    """Who set a setting: the user, or the connector ``plugin`` by its default."""
    source = ctx.source(name)
    return Source(layer=Layer.CONNECTOR, plugin=plugin) if source == CORE_DEFAULT else source
