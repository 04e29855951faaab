"""One allocator for all ports of a launch: it knows every listener of every process.

How ports are found, the same way for the same requests:

1. Ports that the user fixed (``pinned``) stand, or are an error.
2. Default ports stand where they clash with nothing fixed and with no default of an earlier request.
3. The others move, in request order: up from the default in steps of the listener's width (1, or the width of all that
   is derived from it, rounded up to tens or hundreds), to the first place that is free on each node where it is
   opened, outside the kernel's ephemeral range and above 1023; where there is none above, from 1024 up.

A listener moves with everything that is ``relative_to`` it, and a ``worker_wide`` one on all nodes of its worker.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

import attrs

from disagg_run.errors import PortError
from disagg_run.plain_text import listed
from disagg_run.port_units import LAST_PORT, Member, PortRequest, Unit, asked_by, check_apart, port_run, port_units
from disagg_run.spec.model import as_tuple, frozen_map

__all__ = ["DEFAULT_EPHEMERAL", "Allocation", "PortRequest", "PortRow", "allocate"]

#: Linux's default net.ipv4.ip_local_port_range.
DEFAULT_EPHEMERAL = (32768, 60999)
#: Below it, ports are for root.
FIRST_FREE_PORT = 1024


@attrs.frozen(kw_only=True)
class PortRow:
    """One line of the port table."""

    rank: int
    process: str
    listener: str
    #: First and last port, both used.
    first: int
    last: int
    #: The default it could not have; None where it stands.
    moved_from: int | None = None


@attrs.frozen(kw_only=True)
class Allocation:
    """The ports of a launch."""

    #: First port by process and listener; listeners of count 0 are absent.
    ports: Mapping[str, Mapping[str, int]] = attrs.field(converter=frozen_map)
    #: All of them, by rank, then in request order.
    table: tuple[PortRow, ...] = attrs.field(converter=as_tuple)
    #: Defaults and fixed ports in the ephemeral range, and defaults that were already taken on a node.
    warnings: tuple[str, ...] = attrs.field(default=(), converter=as_tuple)


@attrs.frozen
class _Taken:
    """A run of ports of one node that is not free; ``owner`` None = something that already listens there."""

    first: int
    last: int
    owner: Member | None


class _NodePorts:
    """The ports of one node that are taken, as sorted runs that do not overlap."""

    def __init__(self, busy: Iterable[int], ephemeral: tuple[int, int]) -> None:
        self.ephemeral = ephemeral
        self._taken = [_Taken(port, port, None) for port in sorted(busy)]

    def clash(self, first: int, last: int) -> _Taken | None:
        """The first run that overlaps ``first``..``last``."""
        index = bisect.bisect_left(self._taken, first, key=lambda run: run.last)
        if index < len(self._taken) and self._taken[index].first <= last:
            return self._taken[index]
        return None

    def take(self, first: int, last: int, owner: Member) -> None:
        bisect.insort(self._taken, _Taken(first, last, owner), key=lambda run: run.first)


def allocate(
    requests: Iterable[PortRequest],
    *,
    ephemeral: Mapping[int, tuple[int, int]] = MappingProxyType({}),
    busy: Mapping[int, frozenset[int]] = MappingProxyType({}),
) -> Allocation:
    """Give each listener of each request its port; the order of the requests is their priority.

    ``ephemeral`` is the kernel's range for outgoing connections by rank, first and last included (32768-60999 where
    absent); ``busy`` the ports by rank on which something already listens.

    Raises PortError where a fixed port cannot be had, where listeners cannot be told apart, or where no ports are left.
    """
    requests = tuple(requests)
    ranks = {request.rank for request in requests}
    nodes = {rank: _NodePorts(busy.get(rank, ()), ephemeral.get(rank, DEFAULT_EPHEMERAL)) for rank in ranks}
    units = port_units(requests)
    for unit in units:
        check_apart(unit)
        if unit.pinned is not None:
            _take_pinned(unit, unit.pinned, nodes)
    waiting, met_busy = [], []
    for unit in units:
        if unit.pinned is None:
            clash = _first_clash(unit, unit.default, nodes)
            if clash is None:
                _take(unit, unit.default, nodes)
                continue
            waiting.append(unit)
            member, reason = clash
            if isinstance(reason, _Taken) and reason.owner is None:
                met_busy.append((unit, member))
    for unit in waiting:
        _take(unit, _search(unit, nodes), nodes)
    warnings = [*_ephemeral_warnings(units, nodes), *_busy_warnings(met_busy)]
    return _allocation(requests, units, warnings)


# --- places ------------------------------------------------------------------------------------------------------


def _first_clash(unit: Unit, base: int, nodes: Mapping[int, _NodePorts]) -> tuple[Member, _Taken | None] | None:
    """The first member that cannot be at ``base``, with what is in its way (None = no such port)."""
    for member in unit.members:
        first, last = member.at(base)
        if first < 1 or last > LAST_PORT:
            return member, None
        taken = nodes[member.request.rank].clash(first, last)
        if taken is not None:
            return member, taken
    return None


def _take(unit: Unit, base: int, nodes: Mapping[int, _NodePorts]) -> None:
    unit.base = base
    for member in unit.members:
        nodes[member.request.rank].take(*member.at(base), member)


def _take_pinned(unit: Unit, pinned: Member, nodes: Mapping[int, _NodePorts]) -> None:
    clash = _first_clash(unit, unit.default, nodes)
    if clash is not None:
        raise _pinned_clash(pinned, unit.default, *clash)
    _take(unit, unit.default, nodes)


def _pinned_clash(pinned: Member, port: int, member: Member, taken: _Taken | None) -> PortError:
    ports, rank = port_run(*member.at(port)), member.request.rank
    why = f"{pinned} is fixed at {port} ({asked_by(pinned.listener)})"
    if taken is None:
        return PortError(
            f"{member} would need port {ports}, which is not within 1 to {LAST_PORT}: {why}", remedy="fix another port"
        )
    if taken.owner is None:
        return PortError(
            f"{member} needs port {ports} on rank {rank}, but something already listens on {taken.first} there: {why}",
            remedy="end what listens there, or fix another port",
        )
    same, held = taken.owner.listener.name == member.listener.name, port_run(taken.first, taken.last)
    return PortError(
        f"{taken.owner} (port {held}) and {member} (port {ports}) clash on rank {rank}: {why}",
        remedy="leave the port open, so that the second worker of a node moves, or give each worker nodes of its own"
        if same
        else "fix ports that are further apart, or leave one open",
    )


def _search(unit: Unit, nodes: Mapping[int, _NodePorts]) -> int:
    """The first base above the default where all members are free, by whole steps; else the first from 1024 up."""
    low = FIRST_FREE_PORT - min(member.offset for member in unit.members)
    top = LAST_PORT - max(member.at(0)[1] for member in unit.members)
    for start, step in ((unit.default + unit.step, unit.step), (low, 1)):
        base = start if start >= low else start + -(-(low - start) // step) * step
        while base <= top:
            beyond = _next_free(unit, base, nodes)
            if beyond is None:
                return base
            base += -(-(beyond - base) // step) * step
    member = unit.members[0]
    raise PortError(
        f"no free ports are left for {member} on rank {member.request.rank}: it could not stay at {unit.default}",
        remedy="give the workers more nodes, or fix fewer ports",
    )


def _next_free(unit: Unit, base: int, nodes: Mapping[int, _NodePorts]) -> int | None:
    """None where ``base`` is good; else the next base at which what is in the way has been passed."""
    for member in unit.members:
        node = nodes[member.request.rank]
        first, last = member.at(base)
        low, high = node.ephemeral
        if first <= high and last >= low:
            return high + 1 - member.offset
        taken = node.clash(first, last)
        if taken is not None:
            return taken.last + 1 - member.offset
    return None


# --- what is told ------------------------------------------------------------------------------------------------


def _ephemeral_warnings(units: Iterable[Unit], nodes: Mapping[int, _NodePorts]) -> Iterator[str]:
    """One warning for each listener, port and range, however many processes have it."""
    found: dict[tuple[str, int, int, tuple[int, int]], list[str]] = {}
    for unit in units:
        for member in unit.members:
            first, last = member.at(unit.base)
            low, high = span = nodes[member.request.rank].ephemeral
            if first <= high and last >= low:
                found.setdefault((member.listener.name, first, last, span), []).append(member.request.process)
    for (listener, first, last, (low, high)), processes in found.items():
        yield (
            f"port {port_run(first, last)} ({listener} of {listed(processes, 1)}) lies in the kernel's ephemeral range"
            f" {low}-{high}, so an outgoing connection may take it before it is opened: choose one outside, or reserve"
            " it (net.ipv4.ip_local_reserved_ports)"
        )


def _busy_warnings(met: Iterable[tuple[Unit, Member]]) -> Iterator[str]:
    found: dict[tuple[str, int, int], list[str]] = {}
    for unit, member in met:
        first = member.at(unit.default)[0]
        found.setdefault((member.listener.name, first, member.request.rank), []).append(
            f"{member.request.process} (now {member.at(unit.base)[0]})"
        )
    for (listener, first, rank), processes in found.items():
        yield f"something already listens near port {first} on rank {rank}: moved {listener} of {listed(processes, 1)}"


def _allocation(requests: Sequence[PortRequest], units: Iterable[Unit], warnings: Iterable[str]) -> Allocation:
    placed = {
        (member.request.process, member.listener.name): (member, unit) for unit in units for member in unit.members
    }
    ports: dict[str, Mapping[str, int]] = {}
    table = []
    for request in requests:
        here = {}
        for listener in request.listeners:
            if not listener.count:
                continue
            member, unit = placed[request.process, listener.name]
            first, last = member.at(unit.base)
            here[listener.name] = first
            table.append(
                PortRow(
                    rank=request.rank,
                    process=request.process,
                    listener=listener.name,
                    first=first,
                    last=last,
                    moved_from=None if unit.base == unit.default else member.at(unit.default)[0],
                )
            )
        ports[request.process] = MappingProxyType(here)
    table.sort(key=lambda row: row.rank)
    return Allocation(ports=ports, table=tuple(table), warnings=tuple(warnings))
