"""What each role asks of the nodes: the arithmetic of one worker, and every number that makes no sense."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from disagg_run.addresses import normal_address
from disagg_run.declarations import Engine
from disagg_run.errors import SpecError, TopologyError
from disagg_run.sources import Layer
from disagg_run.spec.model import ROLES, LaunchSpec, Role, RoleSpec

#: More GPUs than any node has; a larger number is a slip, and would cost memory before it fails.
MAX_GPUS_PER_NODE = 1024


@attrs.frozen
class Need:
    """What one role asks for."""

    role: Role
    workers: int
    #: GPUs of one worker.
    gpus: int
    #: Nodes that one worker spans.
    span: int
    #: Nodes that the user gave to the role, or None.
    nodes: int | None
    gpus_per_node: int

    @property
    def own_nodes(self) -> int:
        """Nodes of the role where its workers do not share with the other role."""
        return self.workers * self.span if self.nodes is None else self.nodes

    @property
    def fewest_nodes(self) -> int:
        """Nodes of the role where its workers share with one another."""
        per_node = self.gpus_per_node // self.gpus
        return -(-self.workers // per_node) if per_node else self.workers * self.span

    def __str__(self) -> str:
        return f"{count(self.workers, f'{self.role} worker')} of {count(self.gpus, 'GPU')}"


def worker_gpus(role_spec: RoleSpec, tp: int) -> int:
    """GPUs of one worker: tp * pp * dp (attention data parallelism takes no further ones)."""
    return tp * role_spec.pp * role_spec.dp


def check_nodes(spec: LaunchSpec) -> None:
    """Refuse a node size or a node list that makes no sense, with SpecError."""
    if not 1 <= spec.gpus_per_node <= MAX_GPUS_PER_NODE:
        raise SpecError(
            f"GPUs per node must be 1 to {MAX_GPUS_PER_NODE}, not {spec.gpus_per_node}{origin(spec, 'gpus_per_node')}"
        )
    seen: dict[str, int] = {}
    for index, node in enumerate(spec.nodes):
        if not node.address:
            raise SpecError(f"node {index} ({node.name!r}) has no address", remedy="give one address for each node")
        try:
            address = normal_address(node.address)
        except ValueError as error:
            raise SpecError(f"node {index}: {error}{origin(spec, 'nodes')}") from None
        if address in seen:
            raise SpecError(
                f"nodes {seen[address]} and {index} have the same address {node.address!r}{origin(spec, 'nodes')}",
                remedy="name each node once; workers share a node where fewer nodes than workers are given",
            )
        seen[address] = index
        if node.address.startswith("["):
            raise SpecError(f"node {index}: the address {node.address!r} stands in brackets", remedy=f"write {address}")


def role_needs(spec: LaunchSpec, engine: Engine, tp: Mapping[Role, int]) -> list[Need]:
    """What each role of the engine asks for; SpecError or TopologyError where that cannot be had on any nodes."""
    return [_need(spec, engine, role, tp[role]) for role in ROLES if role in engine.roles]


def _need(spec: LaunchSpec, engine: Engine, role: Role, tp: int) -> Need:
    asked = spec.role(role)
    for name, value in (("workers", asked.workers), ("tp", tp), ("pp", asked.pp), ("dp", asked.dp)):
        if value < 1:
            raise SpecError(f"{role} {name} must be at least 1, not {value}{origin(spec, f'{role}.{name}')}")
    if asked.nodes is not None and asked.nodes < 1:
        raise SpecError(f"{role} nodes must be at least 1, not {asked.nodes}{origin(spec, f'{role}.nodes')}")
    gpus, size = worker_gpus(asked, tp), spec.gpus_per_node
    if gpus > size:
        _check_span(spec, engine, role, tp)
    elif size % tp:
        legal = [str(each) for each in range(1, size + 1) if size % each == 0]
        raise TopologyError(
            f"{role} tp {tp} does not divide the {count(size, 'GPU')} of a node{origin(spec, f'{role}.tp')}",
            remedy=f"choose {', '.join(legal[:-1])}{' or ' if legal[:-1] else ''}{legal[-1]}",
        )
    need = Need(role, asked.workers, gpus, max(1, gpus // size), asked.nodes, size)
    _check_role_nodes(spec, need)
    return need


def _check_span(spec: LaunchSpec, engine: Engine, role: Role, tp: int) -> None:
    asked, size = spec.role(role), spec.gpus_per_node
    gpus = worker_gpus(asked, tp)
    what = f"a {role} worker of {count(gpus, 'GPU')} ({_product(asked, tp)})"
    if not engine.multi_node_workers:
        raise TopologyError(
            f"{what} does not fit on one node of {count(size, 'GPU')}, and {engine.name} cannot span nodes",
            remedy=f"the largest legal size of a {role} worker is {count(size, 'GPU')}",
        )
    if gpus % size:
        raise TopologyError(
            f"{what} does not fill whole nodes of {count(size, 'GPU')}",
            remedy=f"choose a {role} tp * pp * dp of {gpus // size * size} or {(gpus // size + 1) * size}",
        )
    for name, part in (("tensor-parallel group", tp), ("data-parallel replica", tp * asked.pp)):
        if part % size and size % part:
            raise TopologyError(
                f"each {name} of a {role} worker has {count(part, 'GPU')} ({_product(asked, tp)}), so that one would"
                f" lie across nodes of {count(size, 'GPU')}",
                remedy="choose sizes that divide a node or fill whole nodes",
            )


def _check_role_nodes(spec: LaunchSpec, need: Need) -> None:
    if need.nodes is None:
        return
    most, fewest = need.workers * need.span, need.fewest_nodes
    if fewest <= need.nodes <= most:
        return
    fits = f"{most}" if fewest == most else f"{fewest} to {most}"
    shares = need.nodes * spec.gpus_per_node
    remedy = f"give {need.role} {fits} node{'s' if most > 1 else ''}"
    if shares % need.workers == 0:
        remedy += f", or make each worker's tp * pp * dp {shares // need.workers}"
    raise TopologyError(
        f"{need} cannot fill {count(need.nodes, 'node')} of {count(spec.gpus_per_node, 'GPU')}"
        f"{origin(spec, f'{need.role}.nodes')}",
        remedy=remedy,
    )


# --- messages ----------------------------------------------------------------------------------------------------


def too_few(spec: LaunchSpec, needs: list[Need], needed: int) -> TopologyError:
    """The error for a node list that is too short; ``needed`` is the nodes that would do."""
    total = total_gpus(needs)
    given, size = len(spec.nodes), spec.gpus_per_node
    return TopologyError(
        f"{asked_for(needs)} need {count(needed, 'node')} ({count(total, 'GPU')}), but {count(given, 'node')}"
        f" {'is' if given == 1 else 'are'} given ({count(given * size, 'GPU')} at {size} a node)"
        f"{origin(spec, 'nodes')}",
        remedy=f"give {count(needed, 'node')}, fewer workers or a smaller tp",
    )


def total_gpus(needs: list[Need]) -> int:
    """GPUs of all workers together."""
    return sum(need.workers * need.gpus for need in needs)


def asked_for(needs: list[Need]) -> str:
    """The workers of all roles in words."""
    return " and ".join(str(need) for need in needs)


def _product(asked: RoleSpec, tp: int) -> str:
    parts = [f"tp {tp}"]
    parts += [f"{name} {value}" for name, value in (("pp", asked.pp), ("dp", asked.dp)) if value > 1]
    return " * ".join(parts)


def count(number: int, noun: str) -> str:
    """A number with its noun, in the plural where it is not 1."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def origin(spec: LaunchSpec, path: str) -> str:
    """The place of a value for a message: `` (run file a.yaml:3)``; empty for core defaults."""
    source = spec.source(path)
    return "" if source.layer is Layer.CORE else f" ({source})"
