"""RDMA devices: which carry KV, how their list is written, and the GID index on ports without an IPv4 address."""

from __future__ import annotations

import difflib
import ipaddress

from disagg_run.context import RankContext
from disagg_run.errors import SpecError
from disagg_run.sources import Layer, Source

#: Name of the check that an expert waives to go without RDMA devices.
DEVICE_CHECK = "ib-devices"


def ib_devices(ctx: RankContext, plugin: str) -> tuple[tuple[str, ...], Source]:
    """The devices of this node that carry KV, in rail order, and who chose them; () = leave the choice to the engine.

    Those that were named, else all that are up. Raises SpecError for a node that is known to have none (R27), or not
    those that were named: that would only fail when the first request is served.
    """
    if ctx.spec.ib_devices:
        _check_named(ctx)
        return ctx.spec.ib_devices, ctx.spec.source("ib_devices")
    own = Source(layer=Layer.CONNECTOR, plugin=plugin, why="the devices that are up on this node")
    if ctx.facts is None:
        return (), own
    found = tuple(nic.name for nic in ctx.facts.nics if nic.state == "ACTIVE")
    if not found and not ctx.spec.simulate and DEVICE_CHECK not in ctx.spec.waive:
        have = ", ".join(f"{nic.name} is {nic.state or 'of unknown state'}" for nic in ctx.facts.nics)
        raise SpecError(
            f"rank {ctx.rank} ({ctx.node.name or ctx.node.address}) has no RDMA device that is up"
            f" ({have or 'it has none at all'}), and none is named",
            remedy=f"name them with --ib-devices, or go without by --waive {DEVICE_CHECK}",
        )
    return found, own


def _check_named(ctx: RankContext) -> None:
    """Refuse named devices that the node is known not to have, or that are down; what is not known may be right."""
    nics = {nic.name: nic for nic in ctx.facts.nics} if ctx.facts else {}
    if not nics or ctx.spec.simulate or DEVICE_CHECK in ctx.spec.waive:
        return
    for name in ctx.spec.ib_devices:
        nic = nics.get(name)
        if nic is not None and nic.state in ("ACTIVE", ""):
            continue
        problem = "is not on" if nic is None else f"is {nic.state} on"
        near = difflib.get_close_matches(name, nics, n=1)
        hint = f"did you mean {near[0]!r}? " if near and nic is None else ""
        raise SpecError(
            f"RDMA device {name!r} ({ctx.spec.source('ib_devices')}) {problem} rank {ctx.rank}"
            f" ({ctx.node.name or ctx.node.address})",
            remedy=f"{hint}it has {', '.join(sorted(nics))}; go on all the same with --waive {DEVICE_CHECK}",
        )


def exact_list(ctx: RankContext, devices: tuple[str, ...]) -> str:
    """The devices as NCCL reads them: a name also stands for all that begin with it, unless ``=`` is put in front."""
    there = {*devices, *(nic.name for nic in ctx.facts.nics)} if ctx.facts else set(devices)
    ambiguous = any(other != name and other.startswith(name) for name in devices for other in there)
    return ("=" if ambiguous else "") + ",".join(devices)


def gid_index(ctx: RankContext, devices: tuple[str, ...]) -> tuple[int, str] | None:
    """The GID index to force on devices where the automatic choice would take a link-local one, and why.

    Where a port has an IPv4 GID the libraries find it; on ports with none they stop at index 0, which is link-local
    (ROCm/ATOM#1748). None = leave the choice to them.
    """
    known = {nic.name: nic for nic in ctx.facts.nics} if ctx.facts else {}
    nics = [known[name] for name in devices if name in known and known[name].gids]
    if not devices or len(nics) < len(devices) or any(_ipv4(gid) for nic in nics for gid in nic.gids.values()):
        return None
    common = set.intersection(*(set(nic.gids) for nic in nics))
    routable = sorted(index for index in common if all(_routable(nic.gids[index]) for nic in nics))
    if not routable:
        return None
    return routable[0], f"first GID that is routable on {', '.join(devices)}; index 0 is link-local"


def _address(gid: str) -> ipaddress.IPv6Address | None:
    try:
        return ipaddress.IPv6Address(gid)
    except ValueError:
        return None


def _ipv4(gid: str) -> bool:
    address = _address(gid)
    return address is not None and address.ipv4_mapped is not None


def _routable(gid: str) -> bool:
    address = _address(gid)
    return address is not None and not (address.is_link_local or address.is_unspecified or address.is_loopback)
