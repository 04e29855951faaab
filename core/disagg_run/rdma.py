"""RDMA devices of a node: which carry KV and collectives, by what address peers reach them, how they are listed."""

from __future__ import annotations

import attrs

from disagg_run.context import RankContext
from disagg_run.errors import SpecError
from disagg_run.facts import Nic
from disagg_run.near_miss import did_you_mean
from disagg_run.sources import Source

#: Name of the check that an expert waives to go without RDMA devices, or with some that a node is not known to have.
DEVICE_CHECK = "ib-devices"


def devices(ctx: RankContext, own: Source) -> tuple[tuple[str, ...], Source]:
    """The devices of the node that carry KV, in rail order, and who chose them; () = none are known of.

    Those that were named, else all that are up, by ``own``.
    """
    if ctx.spec.ib_devices:
        return ctx.spec.ib_devices, ctx.spec.source("ib_devices")
    names = tuple(nic.name for nic in (ctx.facts.nics if ctx.facts else ()) if nic.usable)
    return names, attrs.evolve(own, why="the devices that are up on this node")


def check_devices(ctx: RankContext) -> None:
    """Refuse a node that is known to have no device, or not those that were named: serving would fail, not starting.

    Raises SpecError; nothing is refused under simulation, or where the check is waived.
    """
    if ctx.facts is None or ctx.spec.simulate or DEVICE_CHECK in ctx.spec.waive:
        return
    place = f"rank {ctx.rank} ({ctx.node.name or ctx.node.address})"
    nics = {nic.name: nic for nic in ctx.facts.nics}
    if not ctx.spec.ib_devices and not any(nic.usable for nic in nics.values()):
        have = ", ".join(f"{name} is {nic.state}" for name, nic in nics.items()) or "it has none at all"
        raise SpecError(
            f"{place} has no RDMA device that is up ({have}), and none is named",
            remedy=f"name them with --ib-devices, or go without by --waive {DEVICE_CHECK}",
        )
    for name in ctx.spec.ib_devices if nics else ():
        nic = nics.get(name)
        if nic is not None and nic.usable:
            continue
        problem = "is not on" if nic is None else f"is {nic.state} on"
        hint = f"{did_you_mean(name, nics)} " if nic is None else ""
        raise SpecError(
            f"RDMA device {name!r} ({ctx.spec.source('ib_devices')}) {problem} {place}",
            remedy=f"{hint}it has {', '.join(nics)}; go on all the same with --waive {DEVICE_CHECK}".lstrip(),
        )


def known_nics(ctx: RankContext, names: tuple[str, ...]) -> tuple[Nic, ...]:
    """What is known of devices, in their order; () where one of them is not known."""
    known = {nic.name: nic for nic in ctx.facts.nics} if ctx.facts else {}
    found = tuple(known[name] for name in names if name in known)
    return found if len(found) == len(names) else ()


def data_address(ctx: RankContext, device: str | None) -> tuple[str, str]:
    """The address by which peers reach the node's KV, and why: that behind ``device``, IPv4 first, else the node's."""
    for nic in known_nics(ctx, (device,)) if device else ():
        if nic.addresses:
            address = min(nic.addresses, key=lambda each: ":" in each)
            return address, f"address of {nic.netdev or 'the network device'} behind {device}"
    return ctx.node.address, "the node's address"


def collective_devices(ctx: RankContext, names: tuple[str, ...]) -> str:
    """Devices as NCCL and RCCL read NCCL_IB_HCA: a name stands for all that begin with it, unless ``=`` is in front."""
    others = {nic.name for nic in ctx.facts.nics}.difference(names) if ctx.facts else set()
    ambiguous = any(other.startswith(names) for other in others)
    return ("=" if ambiguous else "") + ",".join(names)
