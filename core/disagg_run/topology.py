"""Workers onto nodes and GPUs: all the arithmetic of a launch, before anything is held.

A worker of a role needs tp * pp * dp GPUs. It has nodes of its own where enough nodes are given, or none are named.
With ``pack``, or with fewer nodes, workers share: each takes the first free GPUs of the first node that has room for
all of it, prefill workers first. ``RoleSpec.nodes`` gives a role that many nodes for itself; its workers are spread
evenly over them. Ranks count nodes that are used: nodes are taken in the order given, so idle ones are the last, and
have no rank.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import attrs

from disagg_run.context import Process
from disagg_run.declarations import Engine
from disagg_run.errors import TopologyError
from disagg_run.spec.model import LaunchSpec, Node, Role, as_tuple
from disagg_run.topology_needs import Need, asked_for, check_nodes, count, role_needs, too_few, total_gpus, worker_gpus

__all__ = ["Layout", "Placed", "place", "worker_gpus", "worker_name"]

#: Documentation ranges of RFC 5737, then the benchmarking range of RFC 2544: (first address, how many).
_UNBOUND_RANGES = (
    ((192, 0, 2, 1), 254),
    ((198, 51, 100, 1), 254),
    ((203, 0, 113, 1), 254),
    ((198, 18, 0, 1), 2 * 65536 - 2),
)
#: Workers that a launch may have, and nodes of one that names none: a larger number is a slip, and would be planned for
#: minutes before it fails.
MAX_WORKERS = 8192
MAX_UNNAMED_NODES = 2048


@attrs.frozen(kw_only=True)
class Placed:
    """A server process on its node."""

    #: Rank of the node.
    rank: int
    process: Process


@attrs.frozen(kw_only=True)
class Layout:
    """Which node does what."""

    #: The nodes that are used, in rank order.
    nodes: tuple[Node, ...] = attrs.field(converter=as_tuple)
    #: Whether the nodes are real: given by the user, or this machine's loopback in a simulation.
    bound: bool
    #: Server processes by rank, then prefill before decode, then worker.
    processes: tuple[Placed, ...] = attrs.field(converter=as_tuple)
    #: Remarks: nodes that stay idle.
    warnings: tuple[str, ...] = attrs.field(default=(), converter=as_tuple)


@attrs.frozen
class _Seat:
    """Where one worker sits: its ranks, and its GPUs on each of them."""

    role: Role
    worker: int
    ranks: range
    gpus: range


def worker_name(process: Process) -> str:
    """Name of the worker that a server process belongs to, which is its head's: ``decode-0`` for ``decode-0.1``."""
    return f"{process.role}-{process.worker}"


def place(
    spec: LaunchSpec, engine: Engine, tp: Mapping[Role, int], *, known_gpus: Mapping[int, int] | None = None
) -> Layout:
    """Put each worker on its nodes and GPUs.

    ``tp`` is the resolved tensor-parallel size of each role of the engine; ``known_gpus`` the GPUs that nodes are known
    to have, by rank. Without nodes the layout is unbound: ``node0``, ``node1``, … at the documentation addresses
    192.0.2.1-254, then 198.51.100.1-254, 203.0.113.1-254, then the benchmarking range 198.18.0.1-198.19.255.254; in a
    simulation it is bound to 127.0.0.1, 127.0.0.2, ….

    Raises SpecError for numbers and nodes that make no sense, TopologyError where workers, nodes and GPUs do not fit.
    """
    check_nodes(spec)
    needs = role_needs(spec, engine, tp)
    _check_amount(spec, needs)
    seats = _seats(spec, needs)
    used = _used(seats)
    nodes = spec.nodes[:used] or tuple(_unnamed_nodes(used, simulate=spec.simulate))
    processes = tuple(_processes(seats, used))
    _check_known_gpus(processes, nodes, known_gpus or {})
    idle = [node.name or node.address for node in spec.nodes[used:]]
    return Layout(
        nodes=nodes,
        bound=bool(spec.nodes) or spec.simulate,
        processes=processes,
        warnings=[_idle_warning(spec, idle, used)] if idle else (),
    )


def _check_amount(spec: LaunchSpec, needs: list[Need]) -> None:
    """Refuse what cannot fit by its bare sum, before any loop over workers."""
    gpus, given, workers = total_gpus(needs), len(spec.nodes), sum(need.workers for need in needs)
    if workers > MAX_WORKERS:
        raise TopologyError(
            f"{asked_for(needs)} are more than one launch can have, which is {MAX_WORKERS} workers",
            remedy="ask for fewer workers",
        )
    if given and gpus > given * spec.gpus_per_node:
        raise too_few(spec, needs, _fewest_nodes(spec, needs))
    nodes = _fewest_nodes(spec, needs) if spec.pack else sum(need.own_nodes for need in needs)
    if not given and nodes > MAX_UNNAMED_NODES:
        raise TopologyError(
            f"{asked_for(needs)} need {count(nodes, 'node')}, but a plan without node names can have"
            f" {MAX_UNNAMED_NODES}",
            remedy="ask for fewer workers, or for smaller ones by tp, pp and dp",
        )


def _fewest_nodes(spec: LaunchSpec, needs: list[Need]) -> int:
    """Nodes that are needed where all share; a lower bound where there are too many workers to seat them."""
    if sum(need.own_nodes for need in needs) > MAX_UNNAMED_NODES:
        return -(-total_gpus(needs) // spec.gpus_per_node)
    return _used(_shared_seats(needs))


# --- seats -------------------------------------------------------------------------------------------------------


def _seats(spec: LaunchSpec, needs: list[Need]) -> list[_Seat]:
    given = len(spec.nodes)
    if spec.pack or (given and sum(need.own_nodes for need in needs) > given):
        seats = _shared_seats(needs)
        if given and _used(seats) > given:
            raise too_few(spec, needs, _used(seats))
        return seats
    seats, first = [], 0
    for need in needs:
        seats += _even_seats(need, first)
        first += need.own_nodes
    return seats


def _shared_seats(needs: list[Need]) -> list[_Seat]:
    """First fit in worker order; a role with nodes of its own has them for itself."""
    seats: list[_Seat] = []
    taken: list[int] = []
    for need in needs:
        if need.nodes is None:
            seats += _first_fit(need, taken)
        else:
            seats += _even_seats(need, len(taken))
            taken += [need.gpus_per_node] * need.nodes
    return seats


def _used(seats: list[_Seat]) -> int:
    return max((seat.ranks.stop for seat in seats), default=0)


def _even_seats(need: Need, first: int) -> Iterator[_Seat]:
    """Seats on nodes that no other role uses, from rank ``first``: whole nodes, or as even as possible."""
    if need.nodes is None or need.nodes == need.workers * need.span:
        for worker in range(need.workers):
            start = first + worker * need.span
            yield _Seat(need.role, worker, range(start, start + need.span), range(need.gpus // need.span))
        return
    worker = 0
    for index in range(need.nodes):
        here = need.workers // need.nodes + (index < need.workers % need.nodes)
        for slot in range(here):
            gpus = range(slot * need.gpus, (slot + 1) * need.gpus)
            yield _Seat(need.role, worker, range(first + index, first + index + 1), gpus)
            worker += 1


def _first_fit(need: Need, taken: list[int]) -> Iterator[_Seat]:
    """Seats on the first nodes with room; ``taken`` is GPUs in use by rank, and grows as nodes are opened.

    Workers of a role are of one size, so a node that had no room for one has none for the next: the search never turns
    back, and the whole takes time linear in workers and nodes. A worker over several nodes gets consecutive ranks.
    """
    rank = 0
    for worker in range(need.workers):
        if need.span > 1:
            first = len(taken)
            taken += [need.gpus_per_node] * need.span
            yield _Seat(need.role, worker, range(first, first + need.span), range(need.gpus_per_node))
            continue
        while rank < len(taken) and taken[rank] + need.gpus > need.gpus_per_node:
            rank += 1
        if rank == len(taken):
            taken.append(0)
        start = taken[rank]
        taken[rank] += need.gpus
        yield _Seat(need.role, worker, range(rank, rank + 1), range(start, start + need.gpus))


def _processes(seats: Iterable[_Seat], used: int) -> Iterator[Placed]:
    by_rank: list[list[Process]] = [[] for _ in range(used)]
    for seat in seats:
        for node_rank, rank in enumerate(seat.ranks):
            name = f"{seat.role}-{seat.worker}" + (f".{node_rank}" if node_rank else "")
            by_rank[rank].append(
                Process(
                    name=name,
                    kind="server",
                    role=seat.role,
                    worker=seat.worker,
                    head=node_rank == 0,
                    node_rank=node_rank,
                    node_count=len(seat.ranks),
                    gpus=seat.gpus,
                )
            )
    for rank, processes in enumerate(by_rank):
        for process in processes:
            yield Placed(rank=rank, process=process)


# --- nodes -------------------------------------------------------------------------------------------------------


def _unnamed_nodes(wanted: int, *, simulate: bool) -> Iterator[Node]:
    ranges = (((127, 0, 0, 1), MAX_UNNAMED_NODES),) if simulate else _UNBOUND_RANGES
    index = 0
    for first, size in ranges:
        number = int.from_bytes(bytes(first), "big")
        for offset in range(min(size, wanted - index)):
            address = ".".join(str(byte) for byte in (number + offset).to_bytes(4, "big"))
            yield Node(name=f"node{index}", address=address)
            index += 1


def _check_known_gpus(processes: Iterable[Placed], nodes: tuple[Node, ...], known: Mapping[int, int]) -> None:
    for placed in processes:
        node, has = nodes[placed.rank], known.get(placed.rank)
        wanted = max(placed.process.gpus, default=-1) + 1
        if has is not None and wanted > has:
            raise TopologyError(
                f"{placed.process.name} needs GPU {wanted - 1} of node {node.name or node.address!r}"
                f" (rank {placed.rank}), which has {count(has, 'GPU')}",
                remedy=f"set GPUs per node to {has}, or use other nodes" if has else "use other nodes",
            )


def _idle_warning(spec: LaunchSpec, idle: list[str], used: int) -> str:
    shown = ", ".join(idle[:8]) + (", …" if len(idle) > 8 else "")
    return (
        f"{count(used, 'node')} of the {len(spec.nodes)} given {'is' if used == 1 else 'are'} enough; idle, without a"
        f" rank: {shown}"
    )
