"""The contexts that hooks are given, made from spec, placement and allocated ports."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from disagg_run.context import Head, Process, ProcessContext, RankContext, split_by_role
from disagg_run.declarations import Engine, ModelRow
from disagg_run.facts import NodeFacts, common_networks
from disagg_run.spec.model import LaunchSpec, Role
from disagg_run.topology import Layout

ROUTER = "router"


@attrs.frozen(kw_only=True)
class Basis:
    """What all contexts of one plan share."""

    spec: LaunchSpec
    engine: Engine
    model: ModelRow
    #: Where the model lies on the hosts, and where the engine's processes find it.
    model_source: str
    model_path: str
    engine_version: str
    connector: str
    layout: Layout
    facts: Mapping[int, NodeFacts]

    def heads(self, ports: Mapping[str, Mapping[str, int]]) -> tuple[Head, ...]:
        """The heads of all workers, prefill first; with their ports where they are allocated."""
        followers: dict[tuple[Role | None, int], list[str]] = {}
        for placed in self.layout.processes:
            if not placed.process.head:
                worker = (placed.process.role, placed.process.worker)
                followers.setdefault(worker, []).append(self.layout.nodes[placed.rank].address)
        heads = [
            Head(
                name=process.name,
                role=process.role,
                worker=process.worker,
                rank=rank,
                address=self.layout.nodes[rank].address,
                gpus=process.gpus,
                followers=followers.get((process.role, process.worker), ()),
                ports=ports.get(process.name, {}),
            )
            for rank, process in ((placed.rank, placed.process) for placed in self.layout.processes)
            if process.head and process.role is not None
        ]
        return tuple(sorted(heads, key=lambda head: (head.role != "prefill", head.worker)))

    def ranks(self, ports: Mapping[str, Mapping[str, int]], peers: frozenset[str]) -> tuple[RankContext, ...]:
        """One context a rank; ``peers`` names the processes (services, router) whose ports are shown to all."""
        heads = self.heads(ports)
        peer_ports = {name: ports[name] for name in sorted(peers) if name in ports}
        by_role = split_by_role(heads)
        networks = common_networks(self.facts.get(placed.rank) for placed in self.layout.processes)
        servers: dict[int, list[str]] = {}
        for placed in self.layout.processes:
            servers.setdefault(placed.rank, []).append(placed.process.name)
        return tuple(
            RankContext(
                spec=self.spec,
                engine=self.engine,
                model=self.model,
                model_path=self.model_path,
                model_source=self.model_source if self.model_source != self.model_path else "",
                engine_version=self.engine_version,
                connector=self.connector,
                rank=rank,
                node=node,
                facts=self.facts.get(rank),
                heads=heads,
                heads_by_role=by_role,
                first_node=self.layout.nodes[0],
                peers=peer_ports,
                rdma_networks=networks,
                servers=tuple(servers.get(rank, ())),
            )
            for rank, node in enumerate(self.layout.nodes)
        )


def processes_by_rank(layout: Layout, *, router: bool) -> tuple[tuple[Process, ...], ...]:
    """The server processes of each rank, then the router on rank 0 where the plan has it."""
    ranks: list[list[Process]] = [[] for _ in layout.nodes]
    for placed in layout.processes:
        ranks[placed.rank].append(placed.process)
    if router:
        ranks[0].append(Process(name=ROUTER, kind="router"))
    return tuple(tuple(rank) for rank in ranks)


def process_context(rank: RankContext, process: Process, ports: Mapping[str, int]) -> ProcessContext:
    """The context of one process of a rank."""
    # The heads of a role stand by worker index.
    head = rank.heads_of(process.role)[process.worker] if process.role else None
    fields = {field.name: getattr(rank, field.name) for field in attrs.fields(RankContext)}
    return ProcessContext(**fields, process=process, ports=ports, head=head)
