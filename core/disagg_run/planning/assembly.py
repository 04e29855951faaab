"""Finished processes become the plan document, grouped by container, with their order and their sources."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs

from disagg_run.context import Process, RankContext, host_port
from disagg_run.flags import MergedFlag
from disagg_run.host import Selection
from disagg_run.planning.containers import check_paths, planned_container
from disagg_run.planning.contexts import Basis
from disagg_run.planning.device_variables import SeenGpus
from disagg_run.planning.document import (
    Group,
    LaunchPlan,
    PlannedModel,
    PlannedProcess,
    RankPlan,
    Ready,
    Remark,
)
from disagg_run.planning.environment import MergedEnv
from disagg_run.planning.per_node import NodeValue
from disagg_run.planning.provenance import Provenance, SourceTable
from disagg_run.planning.readiness import SETUP_TIMEOUT_S, check_order, order, readiness
from disagg_run.ports import Allocation
from disagg_run.records import Listener, Patch, Preflight
from disagg_run.sources import CORE_DEFAULT, Layer, Source

_KINDS = ("setup", "service", "server", "router", "workload")


@attrs.frozen(kw_only=True)
class ProcessDraft:
    """One process with everything but its place in the document."""

    process: Process
    argv: tuple[str, ...]
    exec: tuple[str, ...]
    env: MergedEnv
    ports: Mapping[str, int]
    listeners: tuple[Listener, ...]
    flags: tuple[MergedFlag, ...]
    provenance: Mapping[str, Provenance]
    #: Image where it is not the engine's.
    image: str | None = None
    #: What a user gave it that is its node's own.
    node_values: tuple[NodeValue, ...] = ()
    #: Which GPUs a server sees; None for others.
    seen: SeenGpus | None = None
    #: For services and setups: which servers wait.
    scope: str = "launch"


@attrs.frozen(kw_only=True)
class RankDraft:
    """One rank's finished processes."""

    context: RankContext
    processes: tuple[ProcessDraft, ...]


def assemble(
    basis: Basis,
    selection: Selection,
    drafts: Sequence[RankDraft],
    *,
    allocation: Allocation,
    version_source: Source,
    warnings: tuple[Remark, ...],
    waived: tuple[Remark, ...],
) -> LaunchPlan:
    """The document, checked for unique names and for waits that can end."""
    waits = _Waits(drafts)
    patches, left_out = _patches(basis, selection, drafts)
    grouped = [_groups(draft, selection, waits, patches.get(draft.context.rank, ())) for draft in drafts]
    ranks = tuple(
        RankPlan(rank=draft.context.rank, node=draft.context.node, groups=tuple(group for group, _ in groups))
        for draft, groups in zip(drafts, grouped, strict=True)
    )
    check_order(process for rank in ranks for process in rank.processes())
    spec = basis.spec
    return LaunchPlan(
        engine=spec.engine,
        engine_version=basis.engine_version,
        connector=basis.connector,
        model=PlannedModel(name=spec.model, path=basis.model_source, served_name=_served_name(basis, drafts)),
        bound=basis.layout.bound,
        simulated=spec.simulate,
        plugins=selection.plugins,
        warnings=(*warnings, *left_out),
        waived=waived,
        ranks=ranks,
        sources=SourceTable(values=lambda: _source_values(basis, allocation, version_source, grouped)),
    )


def _served_name(basis: Basis, drafts: Sequence[RankDraft]) -> str:
    for rank in drafts:
        for draft in rank.processes:
            for listener in draft.listeners:
                if listener.probe is not None and listener.probe.served_model:
                    return listener.probe.served_model
    return basis.spec.served_model_name or basis.spec.model


class _Waits:
    """Who waits for whom, over all ranks."""

    def __init__(self, drafts: Sequence[RankDraft]) -> None:
        self.setups: dict[int, list[str]] = {}
        self.rank_services: dict[int, list[str]] = {}
        self.launch_services: list[str] = []
        self.worker_heads: dict[tuple[str | None, int], str] = {}
        #: Where each head serves HTTP.
        self.places: dict[str, str] = {}
        heads: list[tuple[bool, int, str]] = []
        for rank in drafts:
            index = rank.context.rank
            for draft in rank.processes:
                process = draft.process
                if process.kind == "setup":
                    self.setups.setdefault(index, []).append(process.name)
                elif process.kind == "service" and draft.scope == "rank":
                    self.rank_services.setdefault(index, []).append(process.name)
                elif process.kind == "service":
                    self.launch_services.append(process.name)
                elif process.kind == "server" and process.head:
                    self.worker_heads[process.role, process.worker] = process.name
                    heads.append((process.role != "prefill", process.worker, process.name))
                    self.places[process.name] = host_port(rank.context.node.address, draft.ports["http"])
        self.heads = [name for _, _, name in sorted(heads)]

    def of(self, draft: ProcessDraft, rank: int, address: str) -> PlannedProcess:
        """The document's record of a process."""
        process, env = draft.process, draft.env
        follows = None if process.head else self.worker_heads[process.role, process.worker]
        ready = readiness(draft.listeners, draft.ports, address, self.places)
        if process.kind == "setup":
            ready = (Ready(kind="exit", target="", timeout_s=SETUP_TIMEOUT_S),)
        return PlannedProcess(
            name=process.name,
            kind=process.kind,
            role=process.role,
            worker=process.worker,
            head=process.head,
            argv=draft.argv,
            exec=draft.exec,
            env=env.env,
            env_prepend=env.prepend,
            env_append=env.append,
            unset=env.unset,
            secrets=env.secrets,
            gpus=process.gpus,
            ports=dict(draft.ports),
            port_counts={each.name: each.count for each in draft.listeners if each.count > 1},
            ready=ready,
            after=order(
                kind=process.kind,
                follows=follows,
                setups=self.setups.get(rank, ()),
                services=(*self.rank_services.get(rank, ()), *self.launch_services),
                heads=self.heads,
            ),
        )


_Grouped = tuple[Group, tuple[ProcessDraft, ...]]


def _groups(rank: RankDraft, selection: Selection, waits: _Waits, patches: tuple[Patch, ...]) -> tuple[_Grouped, ...]:
    ctx = rank.context
    by_image: dict[str | None, list[ProcessDraft]] = {ctx.spec.image: []}
    for draft in sorted(rank.processes, key=lambda each: _KINDS.index(each.process.kind)):
        # A process names another image than the engine's only where containers are used at all.
        image = (draft.image or ctx.spec.image) if ctx.spec.image else None
        by_image.setdefault(image, []).append(draft)
    needs = [each.record for each in selection.container(ctx)] if ctx.spec.image else []
    preflight = _preflight(ctx, selection)
    groups = []
    for image, processes in by_image.items():
        if not processes:
            continue
        own = image == ctx.spec.image
        container = planned_container(image, needs if own else (), ctx) if image else None
        group = Group(
            container=container,
            patches=patches if own else (),
            forbid_patches=own and ctx.spec.forbid_patches,
            preflight=preflight if own else (),
            processes=tuple(waits.of(draft, ctx.rank, ctx.node.address) for draft in processes),
        )
        if container is not None:
            check_paths(container, zip(group.processes, map(_given_names, processes), strict=True), ctx)
        groups.append((group, tuple(processes)))
    return tuple(groups)


def _given_names(draft: ProcessDraft) -> frozenset[str]:
    """The flags and variables that a user gave a process."""
    flags = {flag.name for flag in draft.flags if flag.source.layer >= Layer.CONTRACT}
    sources = {key.partition("/")[2]: chain[0][0] for key, chain in draft.env.provenance.items()}
    return frozenset(flags.union(name for name, source in sources.items() if source.layer >= Layer.CONTRACT))


def _preflight(ctx: RankContext, selection: Selection) -> tuple[Preflight, ...]:
    # Plugins may look at the same thing.
    checks = dict.fromkeys(each.record for each in selection.preflight(ctx))
    return tuple(attrs.evolve(check, required=False) if check.name in ctx.spec.waive else check for check in checks)


def _patches(
    basis: Basis, selection: Selection, drafts: Sequence[RankDraft]
) -> tuple[dict[int, tuple[Patch, ...]], tuple[Remark, ...]]:
    """The patches of each rank, and a warning for each optional one that the plan goes without."""
    if not basis.spec.patches:
        return {}, ()
    from disagg_run.patching import Selected, select_patches

    spec = basis.spec
    chosen: dict[int, tuple[Patch, ...]] = {}
    offered: tuple[Patch, ...] | None = None
    selected = Selected(patches=())
    left_out: dict[str, Remark] = {}
    for draft in drafts:
        before, offered = offered, tuple(each.record for each in selection.patches(draft.context))
        if offered != before:
            selected = select_patches(
                offered,
                spec.patches,
                basis.engine_version,
                distributions=basis.engine.distributions or None,
                forbid=spec.forbid_patches,
                waiver=spec.patch_waiver,
            )
            source = str(spec.source("patches"))
            left_out.update({text: Remark(message=text, source=source) for text in selected.left_out})
        chosen[draft.context.rank] = selected.patches
    return chosen, tuple(left_out.values())


def _source_values(
    basis: Basis, allocation: Allocation, version_source: Source, grouped: Sequence[tuple[_Grouped, ...]]
) -> dict[str, Provenance]:
    values: dict[str, Provenance] = {"/engine_version": ((version_source, basis.engine_version),)}
    for key in ("engine", "connector", "model"):
        source = basis.spec.source(key)
        if key == "connector" and basis.spec.connector is None:
            source = Source(layer=Layer.ENGINE, plugin=basis.engine.name, why="its default connector")
        values[f"/{key}"] = ((source, str(getattr(basis.spec, key) or getattr(basis, key))),)
    moved = {(row.process, row.listener): row.moved_from for row in allocation.table if row.moved_from is not None}
    if basis.spec.patches:
        from disagg_run.patching import planned_as
    for rank, groups in enumerate(grouped):
        for group, (planned, drafts) in enumerate(groups):
            for patch in planned.patches:
                source = basis.spec.source("patches")
                values[f"/ranks/{rank}/groups/{group}/patches/{patch.id}"] = ((source, planned_as(patch)),)
            for index, draft in enumerate(drafts):
                prefix = f"/ranks/{rank}/groups/{group}/processes/{index}"
                for key, provenance in draft.provenance.items():
                    values[f"{prefix}/{key}"] = provenance
                for key, provenance in draft.env.provenance.items():
                    values[f"{prefix}/{key}"] = provenance
                for listener in draft.listeners:
                    name = draft.process.name
                    values[f"{prefix}/ports/{listener.name}"] = _port_provenance(
                        listener, draft.ports.get(listener.name), moved.get((name, listener.name))
                    )
    return values


def _port_provenance(listener: Listener, port: int | None, moved_from: int | None) -> Provenance:
    source = listener.source or CORE_DEFAULT
    if moved_from is None:
        return ((source, "" if port is None else str(port)),)
    allocated = Source(layer=Layer.CORE, where="port allocation", why=f"{moved_from} is taken on the node")
    return ((allocated, str(port)), (source, str(moved_from)))
