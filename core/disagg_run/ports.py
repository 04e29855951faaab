"""One allocator for all ports of a launch: it knows every listener of every process (DESIGN section 6).

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
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

import attrs

from disagg_run.errors import PortError
from disagg_run.records import Listener
from disagg_run.spec.model import as_tuple, frozen_map

#: Linux's default net.ipv4.ip_local_port_range.
DEFAULT_EPHEMERAL = (32768, 60999)
LAST_PORT = 65535
#: Below it, ports are for root.
FIRST_FREE_PORT = 1024


@attrs.frozen(kw_only=True)
class PortRequest:
    """What one process opens."""

    #: Name of the process, unique in the launch.
    process: str
    #: Rank of its node.
    rank: int
    #: Name shared by the processes of one worker (head and followers); None for others.
    worker: str | None = None
    listeners: tuple[Listener, ...] = attrs.field(converter=as_tuple)
    #: Plugin that asked, for messages; a listener's own source says more.
    plugin: str = ""


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
class _Member:
    """One listener of one process, at a fixed distance from its unit's base."""

    request: PortRequest
    listener: Listener
    offset: int

    def at(self, base: int) -> tuple[int, int]:
        """First and last port with the unit at ``base``."""
        return base + self.offset, base + self.offset + self.listener.count - 1

    def __str__(self) -> str:
        return f"{self.request.process} {self.listener.name}"


@attrs.define
class _Unit:
    """What moves together: a listener, all that is derived from it, and its like on the worker's other nodes."""

    default: int
    #: The member whose port the user fixed.
    pinned: _Member | None
    members: list[_Member]
    base: int = 0

    @property
    def step(self) -> int:
        """Distance of one move: the width, rounded up so that moved ports are easy to tell."""
        low = min(member.offset for member in self.members)
        width = max(member.at(0)[1] for member in self.members) - low + 1
        rounding = 1 if width == 1 else 10 if width <= 100 else 100
        return -(-width // rounding) * rounding


@attrs.frozen
class _Taken:
    """A run of ports of one node that is not free; ``owner`` None = something that already listens there."""

    first: int
    last: int
    owner: _Member | None


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

    def take(self, first: int, last: int, owner: _Member) -> None:
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
    units = _units(requests)
    for unit in units:
        _check_apart(unit)
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


# --- units -------------------------------------------------------------------------------------------------------


def _units(requests: Sequence[PortRequest]) -> list[_Unit]:
    """The listeners of all requests, sorted into what moves together, in order of their first appearance."""
    named = [_by_name(request) for request in requests]
    wide = _wide_roots(requests, named)
    units: dict[tuple[str, str, str], _Unit] = {}
    for request, own in zip(requests, named, strict=True):
        for listener in request.listeners:
            root, offset = _root(request, listener, own, wide)
            is_wide = (request.worker, root.name) in wide
            owner = ("worker", request.worker or "") if is_wide else ("process", request.process)
            unit = units.setdefault((*owner, root.name), _Unit(root.default_port, None, []))
            member = _Member(request, listener, offset)
            if listener.count:
                unit.members.append(member)
            if listener is root and listener.pinned:
                _pin(unit, member)
    return [unit for unit in units.values() if unit.members]


def _by_name(request: PortRequest) -> dict[str, Listener]:
    named: dict[str, Listener] = {}
    for listener in request.listeners:
        if listener.name in named:
            raise PortError(
                f"{request.process} has two listeners called {listener.name!r}"
                f" (from {_origin(request, named[listener.name])} and {_origin(request, listener)})",
                remedy="give each listener of a process a name of its own",
            )
        if listener.count < 0:
            raise PortError(
                f"listener {listener.name!r} of {request.process} has count {listener.count}"
                f" (from {_origin(request, listener)})",
                remedy="a count is 0 or more",
            )
        named[listener.name] = listener
    return named


def _wide_roots(
    requests: Sequence[PortRequest], named: Sequence[Mapping[str, Listener]]
) -> dict[tuple[str | None, str], Listener]:
    """By worker and name, the listeners that all of a worker's processes have at one number.

    A listener that is derived from another makes that one worker-wide too: they move together.
    """
    wide: dict[tuple[str | None, str], Listener] = {}
    for request, own in zip(requests, named, strict=True):
        for listener in request.listeners if request.worker is not None else ():
            if not listener.worker_wide:
                continue
            root, steps = listener, 0
            while root.relative_to in own and steps < len(own):
                root, steps = own[root.relative_to], steps + 1
            if not root.relative_to:
                wide.setdefault((request.worker, root.name), root)
    return wide


def _root(
    request: PortRequest,
    listener: Listener,
    own: Mapping[str, Listener],
    wide: Mapping[tuple[str | None, str], Listener],
) -> tuple[Listener, int]:
    """The listener that ``listener`` is derived from in the end, and the distance to it.

    A follower may derive from a worker-wide listener that stands only with the head.
    """
    offset, at, seen = 0, listener, [listener.name]
    while at.relative_to:
        offset += at.offset
        base = own.get(at.relative_to) or wide.get((request.worker, at.relative_to))
        if base is None or base.name in seen:
            problem = "which it does not have" if base is None else "which is derived from it"
            raise PortError(
                f"listener {at.name!r} of {request.process} is derived from {at.relative_to!r}, {problem}"
                f" (from {_origin(request, at)})",
                remedy=f"its listeners are {', '.join(own)}",
            )
        at = base
        seen.append(at.name)
    if not 1 <= at.default_port <= LAST_PORT:
        raise PortError(
            f"port {at.default_port} of listener {at.name!r} of {request.process} is not within 1 to {LAST_PORT}"
            f" (from {_origin(request, at)})",
            remedy="give it another port" if at.pinned else "the plugin must name a default port",
        )
    return at, offset


def _pin(unit: _Unit, member: _Member) -> None:
    port = member.listener.default_port
    if unit.pinned is not None and unit.default != port:
        raise PortError(
            f"{unit.pinned} is fixed at port {unit.default} and {member} at {port}, but a worker has one port for both",
            remedy="fix the same port for the whole worker",
        )
    unit.default, unit.pinned = port, unit.pinned or member


def _check_apart(unit: _Unit) -> None:
    """Refuse members that overlap wherever their unit goes."""
    by_rank: dict[int, list[_Member]] = {}
    for member in unit.members:
        by_rank.setdefault(member.request.rank, []).append(member)
    for rank, members in by_rank.items():
        members.sort(key=lambda member: member.offset)
        for before, after in itertools.pairwise(members):
            if before.at(0)[1] >= after.offset:
                raise PortError(
                    f"{before} (ports {_run(*before.at(unit.default))}) and {after} (ports"
                    f" {_run(*after.at(unit.default))}) overlap on rank {rank} wherever they are put"
                    f" (from {_origin(before.request, before.listener)})",
                    remedy="their distance or count is wrong in the plugin, or a size asked for is too large for it",
                )


# --- places ------------------------------------------------------------------------------------------------------


def _first_clash(unit: _Unit, base: int, nodes: Mapping[int, _NodePorts]) -> tuple[_Member, _Taken | None] | None:
    """The first member that cannot be at ``base``, with what is in its way (None = no such port)."""
    for member in unit.members:
        first, last = member.at(base)
        if first < 1 or last > LAST_PORT:
            return member, None
        taken = nodes[member.request.rank].clash(first, last)
        if taken is not None:
            return member, taken
    return None


def _take(unit: _Unit, base: int, nodes: Mapping[int, _NodePorts]) -> None:
    unit.base = base
    for member in unit.members:
        nodes[member.request.rank].take(*member.at(base), member)


def _take_pinned(unit: _Unit, pinned: _Member, nodes: Mapping[int, _NodePorts]) -> None:
    clash = _first_clash(unit, unit.default, nodes)
    if clash is not None:
        raise _pinned_clash(pinned, unit.default, *clash)
    _take(unit, unit.default, nodes)


def _pinned_clash(pinned: _Member, port: int, member: _Member, taken: _Taken | None) -> PortError:
    ports, rank = _run(*member.at(port)), member.request.rank
    why = f"{pinned} is fixed at {port} ({_origin(pinned.request, pinned.listener)})"
    if taken is None:
        return PortError(
            f"{member} would need port {ports}, which is not within 1 to {LAST_PORT}: {why}", remedy="fix another port"
        )
    if taken.owner is None:
        return PortError(
            f"{member} needs port {ports} on rank {rank}, but something already listens on {taken.first} there: {why}",
            remedy="end what listens there, or fix another port",
        )
    same = taken.owner.listener.name == member.listener.name
    return PortError(
        f"{taken.owner} (port {_run(taken.first, taken.last)}) and {member} (port {ports}) clash on rank {rank}: {why}",
        remedy="leave the port open, so that the second worker of a node moves, or give each worker nodes of its own"
        if same
        else "fix ports that are further apart, or leave one open",
    )


def _search(unit: _Unit, nodes: Mapping[int, _NodePorts]) -> int:
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


def _next_free(unit: _Unit, base: int, nodes: Mapping[int, _NodePorts]) -> int | None:
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


def _ephemeral_warnings(units: Iterable[_Unit], nodes: Mapping[int, _NodePorts]) -> Iterator[str]:
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
            f"port {_run(first, last)} ({listener} of {_some(processes)}) lies in the kernel's ephemeral range"
            f" {low}-{high}, so an outgoing connection may take it before it is opened: choose one outside, or reserve"
            " it (net.ipv4.ip_local_reserved_ports)"
        )


def _busy_warnings(met: Iterable[tuple[_Unit, _Member]]) -> Iterator[str]:
    found: dict[tuple[str, int, int], list[str]] = {}
    for unit, member in met:
        first = member.at(unit.default)[0]
        found.setdefault((member.listener.name, first, member.request.rank), []).append(
            f"{member.request.process} (now {member.at(unit.base)[0]})"
        )
    for (listener, first, rank), processes in found.items():
        yield f"something already listens near port {first} on rank {rank}: moved {listener} of {_some(processes)}"


def _allocation(requests: Sequence[PortRequest], units: Iterable[_Unit], warnings: Iterable[str]) -> Allocation:
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


def _some(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"


def _run(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}-{last}"


def _origin(request: PortRequest, listener: Listener) -> str:
    return str(listener.source) if listener.source is not None else f"plugin {request.plugin or 'unknown'}"
