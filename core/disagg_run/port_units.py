"""What of a launch's ports moves together: listeners, what is derived from them, and their like on other nodes."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import attrs

from disagg_run.errors import PortError
from disagg_run.records import Listener
from disagg_run.sources import CORE_DEFAULT
from disagg_run.spec.model import as_tuple

LAST_PORT = 65535


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


@attrs.frozen
class Member:
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
class Unit:
    """What moves together: a listener, all that is derived from it, and its like on the worker's other nodes."""

    default: int
    #: The member whose port the user fixed.
    pinned: Member | None
    members: list[Member]
    base: int = 0

    @property
    def step(self) -> int:
        """Distance of one move: the width, rounded up so that moved ports are easy to tell."""
        low = min(member.offset for member in self.members)
        width = max(member.at(0)[1] for member in self.members) - low + 1
        rounding = 1 if width == 1 else 10 if width <= 100 else 100
        return -(-width // rounding) * rounding


def port_units(requests: Sequence[PortRequest]) -> list[Unit]:
    """The listeners of all requests, sorted into what moves together, in order of their first appearance."""
    named = [_by_name(request) for request in requests]
    wide = _wide_roots(requests, named)
    units: dict[tuple[str, str, str], Unit] = {}
    for request, own in zip(requests, named, strict=True):
        for listener in request.listeners:
            root, offset = _root(request, listener, own, wide)
            is_wide = (request.worker, root.name) in wide
            owner = ("worker", request.worker or "") if is_wide else ("process", request.process)
            unit = units.setdefault((*owner, root.name), Unit(root.default_port, None, []))
            member = Member(request, listener, offset)
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
                f" (from {asked_by(named[listener.name])} and {asked_by(listener)})",
                remedy="give each listener of a process a name of its own",
            )
        if listener.count < 0:
            raise PortError(
                f"listener {listener.name!r} of {request.process} has count {listener.count}"
                f" (from {asked_by(listener)})",
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
                f" (from {asked_by(at)})",
                remedy=f"its listeners are {', '.join(own)}",
            )
        at = base
        seen.append(at.name)
    if not 1 <= at.default_port <= LAST_PORT:
        raise PortError(
            f"port {at.default_port} of listener {at.name!r} of {request.process} is not within 1 to {LAST_PORT}"
            f" (from {asked_by(at)})",
            remedy="give it another port" if at.pinned else "the plugin must name a default port",
        )
    return at, offset


def _pin(unit: Unit, member: Member) -> None:
    port = member.listener.default_port
    if unit.pinned is not None and unit.default != port:
        raise PortError(
            f"{unit.pinned} is fixed at port {unit.default} and {member} at {port}, but a worker has one port for both",
            remedy="fix the same port for the whole worker",
        )
    unit.default, unit.pinned = port, unit.pinned or member


def check_apart(unit: Unit) -> None:
    """Refuse members that overlap wherever their unit goes."""
    by_rank: dict[int, list[Member]] = {}
    for member in unit.members:
        by_rank.setdefault(member.request.rank, []).append(member)
    for rank, members in by_rank.items():
        members.sort(key=lambda member: member.offset)
        for before, after in itertools.pairwise(members):
            if before.at(0)[1] >= after.offset:
                raise PortError(
                    f"{before} (ports {port_run(*before.at(unit.default))}) and {after} (ports"
                    f" {port_run(*after.at(unit.default))}) overlap on rank {rank} wherever they are put"
                    f" (from {asked_by(before.listener)})",
                    remedy="their distance or count is wrong in the plugin, or a size asked for is too large for it",
                )


def port_run(first: int, last: int) -> str:
    """Ports as text: ``8000`` or ``6301-6308``."""
    return str(first) if first == last else f"{first}-{last}"


def asked_by(listener: Listener) -> str:
    """Who asked for a listener, for messages; the host has written it on every listener of a plugin."""
    return str(listener.source or CORE_DEFAULT)
