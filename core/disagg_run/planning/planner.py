"""``plan(spec, facts)``: calls the hooks in their order, merges, checks, and yields the launch plan."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import attrs

from disagg_run.catalogue import Catalogue
from disagg_run.context import ProcessContext, RankContext
from disagg_run.facts import NodeFacts
from disagg_run.host import Host, Selection, build_host
from disagg_run.mounts import asked_mounts, inside
from disagg_run.planning.assembly import ProcessDraft, RankDraft, assemble
from disagg_run.planning.commands import Program, asked_args, build_command, build_env, program_catalogue
from disagg_run.planning.contexts import ROUTER, Basis, process_context, processes_by_rank
from disagg_run.planning.device_variables import check_apart, device_remarks, seen_gpus
from disagg_run.planning.document import LaunchPlan, Remark
from disagg_run.planning.load_length import check_load
from disagg_run.planning.parity import Side, check_parity
from disagg_run.planning.per_node import check_per_node, given_node_values
from disagg_run.planning.readiness import check_http, check_told_ports
from disagg_run.planning.resolve import engine_version, model_path, model_row, tag_remark, with_tensor_parallel
from disagg_run.planning.services import ServiceDraft, collect_services, finish_service
from disagg_run.planning.simulated import check_targets, stand_in_exec
from disagg_run.planning.tested import untested_remark
from disagg_run.planning.waivers import Waived, check_names, explain, idle_warnings
from disagg_run.planning.word_sizes import check_words
from disagg_run.ports import Allocation, PortRequest, allocate
from disagg_run.records import Listener
from disagg_run.spec.model import ROLES, LaunchSpec
from disagg_run.spec.typed import check_most, check_types
from disagg_run.topology import place, worker_name

#: Whose flags a catalogue holds.
ProgramName = Literal["server", "router"]


def plan(
    spec: LaunchSpec,
    facts: Mapping[int, NodeFacts] | None = None,
    *,
    host: Host | None = None,
    catalogues: Mapping[ProgramName, Catalogue] | None = None,
) -> LaunchPlan:
    """The launch plan for ``spec``; a pure function of the arguments and the plugins.

    ``facts``: what is known of each rank's node, by rank; absent ranks = not known. ``host``: the plugins; None = those
    installed. ``catalogues``: flags of the very programs that will be started, by program (``server``, ``router``), in
    place of the plugins' own.

    Raises DisaggError subclasses: SpecError, TopologyError, PortError, FlagError, ParityError, PluginError,
    ConflictError, PatchError.
    """
    check_types(spec)
    check_most(spec)
    host = build_host() if host is None else host

    def planned(spec: LaunchSpec) -> LaunchPlan:
        return _Planning(spec, facts or {}, host, catalogues or {}).run()

    making = _Planning(spec, facts or {}, host, catalogues or {})
    made = making.run()
    return making.with_waivers(made, explain(made, spec, made.waived, planned)) if spec.waive else made


class _Planning:
    """One plan in the making: the steps in the order in which hooks are called."""

    def __init__(
        self, spec: LaunchSpec, facts: Mapping[int, NodeFacts], host: Host, catalogues: Mapping[ProgramName, Catalogue]
    ) -> None:
        self.selection: Selection = host.select(spec.engine, spec.connector, spec.patches)
        engine = self.selection.engine
        version, self.version_source = engine_version(spec, engine, facts)
        row = model_row(spec, engine, host.models(spec.engine), version)
        spec = with_tensor_parallel(spec, engine, row)
        tp = {role: spec.role(role).tp or 0 for role in ROLES}
        self.basis = Basis(
            spec=spec,
            engine=engine,
            model=row,
            model_source=model_path(spec),
            model_path=inside(asked_mounts(spec), model_path(spec)) or model_path(spec),
            engine_version=version,
            connector=self.selection.connector.name,
            layout=place(spec, engine, tp, known_gpus=_known_gpus(spec, facts)),
            facts=facts,
        )
        self.programs: dict[str, Program] = {
            "server": program_catalogue(engine, "server", version),
            "router": program_catalogue(engine, "router", spec.router.version or ""),
        }
        for name, each in catalogues.items():
            self.programs[name] = Program(name=name, catalogue=each, exact=True, version=each.version)
        self.processes = processes_by_rank(self.basis.layout, router=spec.router.mode == "plan")
        untested = untested_remark(
            engine, self.selection.connector, spec, version=version, router=self.programs["router"].version
        )
        #: By text, so that one that holds for many processes stands once.
        self.warnings: dict[str, Remark] = {each.message: each for each in _remarks(spec, untested)}

    def run(self) -> LaunchPlan:
        """Go through all steps; of what is waived, the plan tells the differences between prefill and decode alone."""
        ranks = self.basis.ranks({}, frozenset())
        services = collect_services(self.selection, ranks)
        listeners = self._listeners(ranks)
        allocation = self._allocate(listeners, services)
        peers = frozenset({ROUTER, *(draft.name for draft in services if draft.record.kind == "service")})
        ranks = self.basis.ranks(allocation.ports, peers)
        check_names(self.basis.spec, self.selection, ranks)
        drafts = self._rank_drafts(ranks, listeners, services, allocation)
        given = [
            (rank.context.rank, each.process.name, value)
            for rank in drafts
            for each in rank.processes
            for value in each.node_values
        ]
        check_per_node(given, self.basis.layout.nodes)
        check_targets(self.basis.spec, (each.process.name for rank in drafts for each in rank.processes))
        sides = self._sides(drafts)
        waived = check_parity(
            self.selection.parity,
            sides,
            version=self.basis.engine_version,
            engine=self.basis.engine.name,
            waive=self.basis.spec.waive,
        )
        check_load(
            self.basis.spec,
            self.basis.engine,
            [(each.process, each.flags) for each in sides],
            self.programs["server"].catalogue,
        )
        for text in (*self.basis.layout.warnings, *allocation.warnings):
            self.warnings.setdefault(text, Remark(message=text))
        return assemble(
            self.basis,
            self.selection,
            drafts,
            allocation=allocation,
            version_source=self.version_source,
            warnings=tuple(self.warnings.values()),
            waived=waived,
        )

    def with_waivers(self, made: LaunchPlan, waived: Waived) -> LaunchPlan:
        """The plan with all that was let through, and a warning for each waiver that let nothing through."""
        known = self.basis.facts.keys() >= set(range(len(self.basis.layout.nodes)))
        idle = tuple(idle_warnings(self.basis.spec, waived, known_nodes=known))
        return attrs.evolve(made, waived=waived.remarks, warnings=(*made.warnings, *idle))

    def _listeners(self, ranks: Sequence[RankContext]) -> dict[str, tuple[Listener, ...]]:
        found: dict[str, tuple[Listener, ...]] = {}
        for rank in ranks:
            for process in self.processes[rank.rank]:
                ctx = process_context(rank, process, {})
                listeners = tuple(each.record for each in self.selection.readiness(ctx))
                if process.head:
                    check_http(listeners, process.name)
                found[process.name] = listeners
        return found

    def _allocate(self, listeners: Mapping[str, tuple[Listener, ...]], services: Sequence[ServiceDraft]) -> Allocation:
        requests = []
        for rank, processes in enumerate(self.processes):
            for draft in services:
                if draft.rank == rank:
                    requests.append(PortRequest(process=draft.name, rank=rank, listeners=draft.record.listeners))
            for process in processes:
                worker = worker_name(process) if process.role else None
                owned = listeners[process.name]
                requests.append(PortRequest(process=process.name, rank=rank, worker=worker, listeners=owned))
        facts = self.basis.facts
        return allocate(
            requests,
            ephemeral={rank: fact.ephemeral_ports for rank, fact in facts.items()},
            busy={rank: frozenset(fact.listening_ports) for rank, fact in facts.items()},
        )

    def _rank_drafts(
        self,
        ranks: Sequence[RankContext],
        listeners: Mapping[str, tuple[Listener, ...]],
        services: Sequence[ServiceDraft],
        allocation: Allocation,
    ) -> list[RankDraft]:
        drafts = []
        for rank in ranks:
            processes = []
            for draft in services:
                if draft.rank == rank.rank:
                    processes.append(finish_service(self.selection, rank, draft, allocation.ports.get(draft.name, {})))
            for process in self.processes[rank.rank]:
                ports = allocation.ports.get(process.name, {})
                ctx = process_context(rank, process, ports)
                processes.append(self._process(ctx, listeners[process.name]))
            for each in processes:
                check_words(each)
            check_apart([each.seen for each in processes if each.seen is not None], rank)
            drafts.append(RankDraft(context=rank, processes=tuple(processes)))
        return drafts

    def _process(self, ctx: ProcessContext, listeners: tuple[Listener, ...]) -> ProcessDraft:
        router = ctx.process.kind == "router"
        answered = self.selection.router_command(ctx) if router else self.selection.server_command(ctx)
        program = self.programs["router" if router else "server"]
        built = build_command(self.selection, ctx, program, command=answered.record, asked=asked_args(ctx))
        env = build_env(self.selection, ctx)
        check_told_ports(listeners, ctx.ports, built.flags, env, program.catalogue, ctx.process.name)
        seen = seen_gpus(env, ctx)
        for text in (*built.warnings, *device_remarks(env, ctx)):
            self.warnings.setdefault(text, Remark(message=text))
        image = built.image or (ctx.spec.router.image if router else None)
        stand_in = stand_in_exec(self.selection, ctx, built.argv, built.program)
        if ctx.spec.simulate and not stand_in:
            text = f"{self.basis.engine.name} names no stand-in for a {ctx.process.kind}: the real program is started"
            self.warnings.setdefault(text, Remark(message=text))
        return ProcessDraft(
            process=seen.told(ctx.process),
            argv=built.argv,
            exec=stand_in,
            env=env,
            ports=ctx.ports,
            listeners=listeners,
            flags=built.flags,
            provenance=built.provenance,
            image=image,
            node_values=tuple(given_node_values(built, env, program.catalogue)),
            seen=None if router else seen,
        )

    def _sides(self, drafts: Sequence[RankDraft]) -> list[Side]:
        catalogue = self.programs["server"].catalogue
        sides = [
            Side(
                process=draft.process.name,
                role=draft.process.role,
                context=rank.context,
                flags=draft.flags,
                env=draft.env,
                catalogue=catalogue,
            )
            for rank in drafts
            for draft in rank.processes
            if draft.process.role is not None and draft.process.head
        ]
        return sorted(sides, key=lambda side: side.role != "prefill")


def _remarks(spec: LaunchSpec, untested: str) -> Iterator[Remark]:
    """What is odd of a spec before anything is planned; ``untested``: releases that nobody has run, "" = none."""
    for text, source in spec.notices:
        yield Remark(message=text, source=str(source))
    tagged = tag_remark(spec)
    if tagged:
        yield Remark(message=tagged, source=str(spec.source("image")))
    if untested:
        yield Remark(message=untested)
    if spec.mounts and not spec.image:
        text = "mounts are asked for, but no image is: what runs on the bare host sees all of it"
        yield Remark(message=text, source=str(spec.source(f"mounts.{spec.mounts[0]}")))


def _known_gpus(spec: LaunchSpec, facts: Mapping[int, NodeFacts]) -> dict[int, int]:
    """GPUs that nodes are known to have, by rank; a simulation needs none."""
    return {} if spec.simulate else {rank: fact.gpus for rank, fact in facts.items() if fact.gpus is not None}
