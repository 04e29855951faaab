"""What a hook is given: frozen views of the spec, the model row, the rank's node and the process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from disagg_run.declarations import Engine, ModelRow
from disagg_run.facts import NodeFacts
from disagg_run.records import ProcessKind
from disagg_run.sources import CORE_DEFAULT, Layer, Source
from disagg_run.spec.model import ROLES, LaunchSpec, Node, Role, RoleSpec, as_tuple, frozen_map

_MISSING = object()


@attrs.frozen(kw_only=True)
class Head:
    """A worker's head, as routers and peers see it."""

    #: Process name: ``prefill-0``.
    name: str
    role: Role
    #: Index among the role's workers.
    worker: int
    #: Rank of its node.
    rank: int
    #: Address of its node.
    address: str
    #: GPUs of its node that it may use, by index.
    gpus: tuple[int, ...] = attrs.field(default=(), converter=as_tuple)
    #: Addresses of the worker's further nodes, in their order.
    followers: tuple[str, ...] = attrs.field(default=(), converter=as_tuple)
    #: Its ports by listener name; empty until ports are allocated.
    ports: Mapping[str, int] = attrs.field(factory=dict, converter=frozen_map)

    @property
    def url(self) -> str:
        """Where it serves HTTP, once ports are allocated: ``http://10.0.0.1:8000``."""
        return f"http://{host_port(self.address, self.ports['http'])}"


def host_port(address: str, port: int) -> str:
    """``address:port``, an IPv6 address in brackets."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def any_address(address: str) -> str:
    """What a program binds to be reached at ``address`` and all others of its family."""
    return "::" if ":" in address else "0.0.0.0"


def split_by_role(heads: tuple[Head, ...]) -> Mapping[Role, tuple[Head, ...]]:
    """The heads of each role, in their order."""
    return frozen_map({role: tuple(head for head in heads if head.role == role) for role in ROLES})


@attrs.frozen(kw_only=True)
class Process:
    """One process of the plan, before its command is known."""

    #: Unique in the plan: ``decode-0``, ``decode-0.1`` (a follower), ``router``.
    name: str
    kind: ProcessKind
    #: Role of a server; None for others.
    role: Role | None = None
    #: Index among the role's workers.
    worker: int = 0
    #: Whether it is the worker's head (always true for one-node workers).
    head: bool = True
    #: Index of its node within the worker: 0 for the head.
    node_rank: int = 0
    #: Nodes that the worker spans.
    node_count: int = 1
    #: GPUs of its node that it may use, by index.
    gpus: tuple[int, ...] = attrs.field(default=(), converter=as_tuple)


@attrs.frozen(kw_only=True)
class RankContext:
    """What a hook for a whole rank is given."""

    spec: LaunchSpec
    engine: Engine
    #: Row of the engine's table; a bare row with the model's name where the engine takes any model.
    model: ModelRow
    #: Where the model lies on the nodes, or inside the container where a mount of the user's shows it elsewhere.
    model_path: str
    engine_version: str
    #: Name of the connector plugin.
    connector: str
    #: Rank of the node in the launch.
    rank: int
    node: Node
    #: What the node has; None where it is not known (a plan made away from the cluster).
    facts: NodeFacts | None
    #: Heads of all workers, prefill first, then decode, each by worker index.
    heads: tuple[Head, ...] = attrs.field(converter=as_tuple)
    #: Rank 0's node.
    first_node: Node
    #: Where the model lies on the host, where that is not ``model_path``; "" = it is.
    model_source: str = ""
    #: Ports of services and the router by process name, once allocated: ``peers["router"]["http"]``.
    peers: Mapping[str, Mapping[str, int]] = attrs.field(factory=dict, converter=frozen_map)
    #: Networks on which every node with servers is known to have an RDMA device; None = not known.
    rdma_networks: frozenset[str] | None = None
    #: Names of this rank's server processes.
    servers: tuple[str, ...] = attrs.field(default=(), converter=as_tuple)
    #: ``heads`` by role; one mapping for all contexts of a plan, so that asking for a role costs nothing.
    heads_by_role: Mapping[Role, tuple[Head, ...]] = attrs.field(
        default=attrs.Factory(lambda self: split_by_role(self.heads), takes_self=True), repr=False
    )

    @property
    def shares_node(self) -> bool:
        """Whether several servers run on the node."""
        return len(self.servers) > 1

    def heads_of(self, role: Role) -> tuple[Head, ...]:
        """The heads of one role, by worker index."""
        return self.heads_by_role.get(role, ())

    def _lookup(self, name: str, role: Role | None) -> tuple[Any, Source]:
        best: tuple[Any, Source] = (_MISSING, CORE_DEFAULT)
        if name in self.spec.settings:
            best = (self.spec.settings[name], self.spec.source(f"settings.{name}"))
        if role is not None and name in self.spec.role(role).settings:
            source = self.spec.source(f"{role}.settings.{name}")
            if best[0] is _MISSING or source.layer >= best[1].layer:
                best = (self.spec.role(role).settings[name], source)
        return best

    def setting(self, name: str, default: Any = None, *, role: Role | None = None) -> Any:
        """The user's value of a declared setting, or ``default``; a role's own value wins within one layer."""
        value, _ = self._lookup(name, role)
        return default if value is _MISSING else value

    def source(self, name: str, *, role: Role | None = None) -> Source:
        """Who set a declared setting; the core default where nobody did."""
        return self._lookup(name, role)[1]

    def set_by(self, name: str, *, role: Role | None = None) -> Source | None:
        """Who set a declared setting; None where nobody did, which stands for the plugin in a record's ``source``."""
        value, source = self._lookup(name, role)
        return None if value is _MISSING or value is None else source

    def table_source(self, path: str, *, why: str = "") -> Source:
        """The source of a value from the model's row, with its place in the table."""
        return Source(layer=Layer.MODEL, plugin=self.engine.name, where=self.model.place(path), why=why)


@attrs.frozen(kw_only=True)
class ProcessContext(RankContext):
    """What a hook for one process is given."""

    process: Process
    #: This process's ports by listener name; empty while listeners are still being asked for.
    ports: Mapping[str, int] = attrs.field(factory=dict, converter=frozen_map)
    #: The head of this process's worker; None for processes that are no server.
    head: Head | None = None

    @property
    def role_spec(self) -> RoleSpec:
        """The spec of this process's role; prefill's for processes without a role."""
        return self.spec.role(self.process.role or ROLES[0])

    def _lookup(self, name: str, role: Role | None) -> tuple[Any, Source]:
        return super()._lookup(name, role or self.process.role)
