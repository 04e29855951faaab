"""RDMA devices of a node: which carry KV and collectives, by what address peers reach them, how they are listed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import attrs

from disagg_run.context import ProcessContext, RankContext
from disagg_run.errors import ParityError, SpecError
from disagg_run.facts import Nic
from disagg_run.near_miss import did_you_mean
from disagg_run.plain_text import listed
from disagg_run.sources import Source

#: Name of the check that an expert waives to go without RDMA devices, or with some that a node is not known to have.
DEVICE_CHECK = "ib-devices"
#: Where NCCL and RCCL read which devices they may use.
COLLECTIVE_DEVICES = "NCCL_IB_HCA"
#: The same for prefill and decode that share a node and would use devices without a route between them.
RAIL_CHECK = "rdma-rails"


def devices(ctx: RankContext, own: Source) -> tuple[tuple[str, ...], Source]:
    """The devices of the node that carry KV, in rail order, and who chose them; () = none are known of.

    Those that were named, else all that are up and reach each other, by ``own``.
    """
    if ctx.spec.ib_devices:
        return ctx.spec.ib_devices, ctx.spec.source("ib_devices")
    usable = tuple(nic for nic in (ctx.facts.nics if ctx.facts else ()) if nic.usable)
    chosen = joined(usable, ctx.rdma_networks)
    why = "the devices that are up on this node"
    if len(chosen) < len(usable):
        why += f", of the networks that all nodes have: {', '.join(_networks(chosen))}"
    return tuple(nic.name for nic in chosen), attrs.evolve(own, why=why)


def joined(nics: tuple[Nic, ...], common: frozenset[str] | None) -> tuple[Nic, ...]:
    """Those of some devices that transfers may use together; all of them where their networks are not known.

    On networks without routes to each other a pair of devices taken from two would fail later, in some transfers only.
    So it is the largest network of ``common`` (those that all nodes have; None = not known); but where each GPU has its
    own network (rails), one device of each: GPUs then speak to those of the same rail.
    """
    networks = _networks(nics)
    if "" in networks:
        return nics
    groups = {name: tuple(nic for nic in nics if nic.network == name) for name in networks}
    if common is not None:
        groups = {name: group for name, group in groups.items() if name in common}
    if not groups:
        return ()
    largest = groups[min(groups, key=lambda name: (-len(groups[name]), name))]
    served = {gpu for group in groups.values() for nic in group for gpu in nic.gpus}
    if len(largest) == 1 or served != {gpu for nic in largest for gpu in nic.gpus}:
        return tuple(nic for nic in nics if nic.network in groups)
    return largest


def _networks(nics: Iterable[Nic]) -> tuple[str, ...]:
    return tuple(sorted({nic.network for nic in nics}))


def check_devices(ctx: RankContext) -> None:
    """Refuse a node that is known to have no device, or not those that were named: serving would fail, not starting.

    The same for devices that are known not to reach each other. Raises SpecError; nothing is refused under simulation,
    or where the check is waived.
    """
    if ctx.facts is None or ctx.spec.simulate or DEVICE_CHECK in ctx.spec.waive:
        return
    place = f"rank {ctx.rank} ({ctx.node.name or ctx.node.address})"
    nics = {nic.name: nic for nic in ctx.facts.nics}
    _check_present(ctx, place, nics)
    _check_joined(ctx, place, nics)


def _check_present(ctx: RankContext, place: str, nics: Mapping[str, Nic]) -> None:
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


def _check_joined(ctx: RankContext, place: str, nics: Mapping[str, Nic]) -> None:
    """Refuse what ``joined`` would not take, where the user named it or the nodes leave nothing."""
    chosen = tuple(nics[name] for name in ctx.spec.ib_devices if name in nics)
    chosen = chosen if ctx.spec.ib_devices else tuple(nic for nic in nics.values() if nic.usable)
    together = joined(chosen, ctx.rdma_networks)
    if not together and chosen:
        raise SpecError(
            f"the RDMA devices of {place} are on {listed(_networks(chosen), 4)}, and no network is one of all nodes",
            remedy=f"use nodes of one network, or go on all the same with --waive {DEVICE_CHECK}",
        )
    if not ctx.spec.ib_devices or len(together) == len(chosen):
        return
    left = next(nic for nic in chosen if nic not in together)
    raise SpecError(
        f"RDMA devices {together[0].name!r} (network {together[0].network!r}) and {left.name!r} (network"
        f" {left.network!r}) of {place} do not reach each other ({ctx.spec.source('ib_devices')})",
        remedy=f"name {','.join(nic.name for nic in together)}, or go on all the same with --waive {DEVICE_CHECK}",
    )


def check_meeting(ctx: ProcessContext, names: tuple[str, ...], *, remedy: str) -> None:
    """Refuse prefill and decode of one node whose GPUs' own devices are on networks that do not meet.

    Transfer libraries give each GPU the devices closest to it, of those that they may use: ``names``. On a node with a
    device and a rail for each GPU, GPUs of different roles then cannot exchange KV (fault B74). ``remedy``: what
    the connector has against it. Raises ParityError; nothing is refused where facts do not tell networks and GPUs,
    under simulation, or where the check is waived.
    """
    nics = known_nics(ctx, names)
    if not ctx.shares_node or ctx.spec.simulate or RAIL_CHECK in ctx.spec.waive or len(nics) < 2:
        return
    if any(not (nic.network and nic.gpus) for nic in nics):
        return
    mine = _near(nics, ctx.process.gpus)
    for head in ctx.heads:
        theirs = _near(nics, head.gpus)
        if head.rank != ctx.rank or head.role == ctx.process.role or {*_networks(mine)} & {*_networks(theirs)}:
            continue
        ours, others = (listed([f"{nic.name} on {nic.network}" for nic in each], 4) for each in (mine, theirs))
        raise ParityError(
            f"{ctx.process.name} and {head.name} share rank {ctx.rank} ({ctx.node.name or ctx.node.address}), but the"
            f" RDMA devices of their GPUs do not reach each other: {ours} for {ctx.process.name}, {others} for"
            f" {head.name}",
            remedy=f"{remedy}, give the roles nodes of their own, or let it through with --waive {RAIL_CHECK}",
        )


def _near(nics: tuple[Nic, ...], gpus: tuple[int, ...]) -> tuple[Nic, ...]:
    """The devices that some GPUs are given; all where none is close to one of them."""
    return tuple(nic for nic in nics if set(nic.gpus) & set(gpus)) or nics


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


def further_matches(ctx: RankContext, value: str) -> tuple[str, ...]:
    """Devices of the node that a list for NCCL and RCCL stands for, and does not name: names are prefixes there."""
    names = [each.partition(":")[0] for each in value.lstrip("^").split(",") if each]
    if value.lstrip("^").startswith("=") or ctx.facts is None:
        return ()
    return tuple(nic.name for nic in ctx.facts.nics if nic.name not in names and nic.name.startswith(tuple(names)))


def collective_devices(ctx: RankContext, names: tuple[str, ...]) -> str:
    """Devices as NCCL and RCCL read NCCL_IB_HCA: a name stands for all that begin with it, unless ``=`` is in front."""
    others = {nic.name for nic in ctx.facts.nics}.difference(names) if ctx.facts else set()
    ambiguous = any(other.startswith(names) for other in others)
    return ("=" if ambiguous else "") + ",".join(names)
