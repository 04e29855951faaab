"""RDMA as vLLM's connectors use it: one device carries KV, by a GID and perhaps a route that must be right."""

from __future__ import annotations

import ipaddress

import attrs

from disagg_run import rdma
from disagg_run.context import RankContext
from disagg_run.records import Command, ServiceProcess
from disagg_run.sources import Layer, Source

#: Where the public clusters have their links of two addresses.
_LINKS = ipaddress.ip_network("192.168.0.0/16")


def devices(ctx: RankContext) -> tuple[tuple[str, ...], Source]:
    """The RDMA devices in rail order and who named them; () = none are known of."""
    return rdma.devices(ctx, Source(layer=Layer.ENGINE, plugin=ctx.engine.name))


def first_device(ctx: RankContext) -> str | None:
    """The device that carries KV; None = none is known of."""
    return next(iter(devices(ctx)[0]), None)


def data_address(ctx: RankContext) -> tuple[str, str]:
    """The address by which peers reach the node's KV, and why: that of the first RDMA device, else the node's own."""
    return rdma.data_address(ctx, first_device(ctx))


def gid_index(ctx: RankContext) -> tuple[int, str]:
    """The GID index of the devices and why: the first that is routable on all of them.

    1 where their GIDs are not known: 0 is link-local on the clusters of the public recipes.
    """
    nics = rdma.known_nics(ctx, devices(ctx)[0])
    common = frozenset.intersection(*(nic.routable_gids for nic in nics)) if nics else frozenset()
    if not common or 1 in common:
        return 1, "0 is link-local"
    return min(common), f"first GID that is routable on {', '.join(nic.name for nic in nics)}"


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

    The peer on a /31 link is the host's address with its last bit turned over; setting that bit instead, as the public
    launcher does, gives odd hosts their own address.
    """
    device = first_device(ctx)
    if ctx.spec.simulate or device is None or not ctx.setting("rdma_route", True):
        return None
    address, _ = data_address(ctx)
    try:
        host = ipaddress.IPv4Address(address)
    except ValueError:
        return None
    for nic in rdma.known_nics(ctx, (device,)):
        if nic.netdev and address in nic.addresses and host in _LINKS:
            network = ipaddress.ip_network(f"{host}/24", strict=False)
            return Route(network=str(network), peer=str(ipaddress.IPv4Address(int(host) ^ 1)), device=nic.netdev)
    return None


def setup(ctx: RankContext) -> tuple[ServiceProcess, ...]:
    """The setup process that makes the route."""
    way = route(ctx)
    if way is None:
        return ()
    program = ("ip", "route", "replace", way.network, "via", way.peer, "dev", way.device)
    return (ServiceProcess(name="rdma-route", kind="setup", command=Command(program=program)),)


def chosen(ctx: RankContext, name: str, plugin: str) -> Source:
    """Who set a setting: the user, or the connector ``plugin`` by its default."""
    return ctx.set_by(name) or Source(layer=Layer.CONNECTOR, plugin=plugin)
