"""The part of the engine contract that is seen on finished plans."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

import attrs

from disagg_run.catalogue import Catalogue
from disagg_run.declarations import Engine
from disagg_run.errors import DisaggError, TopologyError
from disagg_run.host import Host
from disagg_run.planning.commands import program_catalogue
from disagg_run.planning.document import LaunchPlan, PlannedProcess
from disagg_run.planning.planner import plan
from disagg_run.spec.model import LaunchSpec, RoleSpec

Complaints = Iterator[str]

_LAYOUTS = ((1, 1), (2, 1), (1, 2))
_NO_MODEL = "no-such-model-anywhere"


@attrs.frozen(kw_only=True)
class Case:
    """An engine under test."""

    host: Host
    engine: Engine
    #: Models with the engine version to plan for.
    models: tuple[tuple[str, str], ...]

    def spec(self, model: str, version: str, prefill: RoleSpec, decode: RoleSpec) -> LaunchSpec:
        """What is asked for one plan."""
        return LaunchSpec(engine=self.engine.name, model=model, engine_version=version, prefill=prefill, decode=decode)


@attrs.frozen(kw_only=True)
class Seen:
    """A finished plan under test."""

    case: Case
    plan: LaunchPlan
    catalogue: Catalogue | None

    def processes(self) -> Iterator[tuple[str, PlannedProcess]]:
        """Every process with the JSON pointer under which it stands."""
        for rank_index, rank in enumerate(self.plan.ranks):
            for group_index, group in enumerate(rank.groups):
                for index, process in enumerate(group.processes):
                    yield f"/ranks/{rank_index}/groups/{group_index}/processes/{index}", process

    def servers(self) -> Iterator[PlannedProcess]:
        """The server processes, followers included."""
        return (process for _, process in self.processes() if process.kind == "server")


def plan_violations(case: Case) -> list[str]:
    """What is wrong with plans of the engine, each line with model and layout in front."""
    wrong: list[str] = []
    for model, version in case.models:
        for prefill, decode in _LAYOUTS:
            spec = case.spec(model, version, RoleSpec(workers=prefill), RoleSpec(workers=decode))
            where = f"{model} {prefill}P{decode}D"
            try:
                made = plan(spec, host=case.host)
                again = plan(spec, host=case.host)
            except DisaggError as error:
                wrong.append(f"{where}: cannot be planned: {error}")
                continue
            catalogue = program_catalogue(case.engine, "server", version).catalogue
            seen = Seen(case=case, plan=made, catalogue=catalogue)
            wrong += [f"{where}: {line}" for check in _PLAN_CHECKS for line in check(seen)]
            if made.to_json() != again.to_json():
                wrong.append(f"{where}: the same spec gives another plan the second time: a hook is not pure")
    model, version = case.models[0]
    for further in (_simulation, _many_nodes, _unknown_model):
        wrong += [f"{model}: {line}" for line in further(case, model, version)]
    return wrong


def _readiness(seen: Seen) -> Complaints:
    for rank in seen.plan.ranks:
        for process in rank.processes():
            if process.kind != "server" or not process.head:
                continue
            if not any(ready.kind in ("http", "generation") for ready in process.ready):
                yield f"no http or generation probe proves {process.name} ready (disagg_readiness)"
            for ready in process.ready:
                port = urlsplit(ready.target if "//" in ready.target else f"//{ready.target}").port
                if port not in process.ports.values():
                    yield f"{process.name} is asked at {ready.target}, which is none of its ports {dict(process.ports)}"


def _own_port(seen: Seen) -> Complaints:
    for process in seen.servers():
        port = str(process.ports.get("http", ""))
        if process.head and not any(port in word for word in (*process.argv, *process.env.values())):
            yield f"{process.name} is not told its HTTP port {port}: an engine's own default may differ"


def _flags_once(seen: Seen) -> Complaints:
    for process in seen.servers():
        counts: dict[str, int] = {}
        for word in process.argv:
            name = word.partition("=")[0]
            known = seen.catalogue.lookup(name) if seen.catalogue else None
            if known is not None and known.repeatable:
                continue
            if known is not None or _is_flag(word):
                name = known.names[0] if known else name
                counts[name] = counts.get(name, 0) + 1
        for name, count in counts.items():
            if count > 1:
                yield f"{name} stands {count} times in the command of {process.name}"


def _no_unknown_flags(seen: Seen) -> Complaints:
    for remark in seen.plan.warnings:
        if "flag" in remark.message:
            yield f"warning: {remark.message}"


def _every_flag_has_a_source(seen: Seen) -> Complaints:
    values = seen.plan.sources.values if seen.plan.sources else {}
    for pointer, process in seen.processes():
        if process.kind in ("server", "router"):
            named = {key[len(pointer) + 6 :].partition("/")[0] for key in values if key.startswith(f"{pointer}/argv/")}
            for word in process.argv:
                if word.startswith("--") and word.partition("=")[0].replace("~", "~0") not in named:
                    yield f"nobody is named as the source of {word} of {process.name}: is it a program word?"


def _round_trip(seen: Seen) -> Complaints:
    """Fields that the host does not check hold the types that they say."""
    try:
        read = LaunchPlan.from_json(seen.plan.to_json())
    except (DisaggError, TypeError) as error:
        yield f"the plan cannot be written as JSON and read back: {error}"
        return
    if read != seen.plan:
        yield "the plan read back from its JSON is another one"


_PLAN_CHECKS: tuple[Callable[[Seen], Complaints], ...] = (
    _readiness,
    _own_port,
    _flags_once,
    _no_unknown_flags,
    _every_flag_has_a_source,
    _round_trip,
)


def _simulation(case: Case, model: str, version: str) -> Complaints:
    spec = attrs.evolve(case.spec(model, version, RoleSpec(), RoleSpec()), simulate=True)
    try:
        made = plan(spec, host=case.host)
    except DisaggError as error:
        yield f"cannot be planned under --simulate: {error}"
        return
    real = plan(attrs.evolve(spec, simulate=False), host=case.host)
    for name in made.process_names():
        process = made.process(name)
        if process.kind == "server" and not process.exec:
            yield f"nobody answers disagg_simulation for {name}"
        elif _names(process) != _names(real.process(name)):
            yield f"under --simulate {name} has other flags: stand-ins are started with the very argv of the plan"


def _names(process: PlannedProcess) -> list[str]:
    return [word.partition("=")[0] for word in process.argv if _is_flag(word)]


def _is_flag(word: str) -> bool:
    return word.startswith("--") or (word.startswith("-") and word[1:2].isalpha())


def _many_nodes(case: Case, model: str, version: str) -> Complaints:
    gpus = LaunchSpec(engine=case.engine.name, model=model).gpus_per_node
    wide = RoleSpec(tp=2 * gpus)
    spec = case.spec(model, version, wide, wide)
    # The default connector may hold such workers for a case for experts; another one need not.
    spec = attrs.evolve(spec, waive=case.host.select(spec.engine, None).waivable)
    try:
        made = plan(spec, host=case.host)
    except TopologyError as error:
        if case.engine.multi_node_workers:
            yield f"multi_node_workers is set, but a worker of {2 * gpus} GPUs is refused: {error}"
        return
    except DisaggError as error:
        yield f"a worker of {2 * gpus} GPUs gives no plan and no TopologyError: {error}"
        return
    if not case.engine.multi_node_workers:
        yield f"multi_node_workers is not set, but a worker of {2 * gpus} GPUs is planned"
        return
    for role in ("prefill", "decode"):
        head, follower = made.process(f"{role}-0"), made.process(f"{role}-0.1")
        if head.argv == follower.argv and head.env == follower.env:
            yield f"head and follower of {role}-0 are started alike: neither can know its place"


def _unknown_model(case: Case, model: str, version: str) -> Complaints:
    if case.engine.any_model:
        return
    try:
        plan(case.spec(_NO_MODEL, version, RoleSpec(), RoleSpec()), host=case.host)
    except DisaggError:
        return
    yield f"the unknown model {_NO_MODEL!r} is planned, though any_model is not set"
