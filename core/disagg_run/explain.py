"""Who set a value of a plan, and what it replaced: the answers behind ``disagg-run explain``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import attrs

from disagg_run.catalogue import Catalogue, pick_catalogue
from disagg_run.declarations import CatalogueRef
from disagg_run.errors import PlanError, SpecError
from disagg_run.explain_values import Explanation, ProcessValues, plain
from disagg_run.near_miss import did_you_mean
from disagg_run.plain_text import printable
from disagg_run.planning.document import Group, LaunchPlan, PlannedProcess
from disagg_run.planning.provenance import Provenance
from disagg_run.sources import Layer, Source

__all__ = ["Explanation", "explain", "render_explanations"]


def explain(
    plan: LaunchPlan, query: str, *, process: str | None = None, catalogues: Iterable[CatalogueRef] = ()
) -> tuple[Explanation, ...]:
    """Say who set what ``query`` names; processes with the same answer stand in one explanation.

    ``query``: a flag (with or without its dashes, ``_`` for ``-``), a key of a JSON flag (``--kv-config.kv_role``), a
    variable, a listener (``http``), ``after``, ``ready``, ``gpus``, a patch, or ``engine``, ``engine_version``,
    ``connector``, ``model``. ``process`` or a prefix ``prefill-0:`` narrows it to one process, ``prefill:`` to a role.
    With the engine's ``catalogues`` a flag is also found by an alias or its negation, where the plan has the other, and
    one that its program has and nobody sets is said to be not set.

    Raises PlanError where the plan has no sources, or nothing of that name (the nearest is named, or the option of that
    name); SpecError where it has no such process.
    """
    if plan.sources is None:
        raise PlanError(
            "the plan does not say who set its values: its sources are a document of their own",
            remedy="explain a plan where it is made",
        )
    catalogues = tuple(catalogues)
    index = _Index(plan.sources.values)
    wanted, name = _parted(plan, query, process)
    answers: dict[Explanation, list[str]] = {}
    asked = [each for each in _processes(plan) if wanted is None or each[2].name in wanted]
    for spelling in (name, *_other_spellings(name, catalogues, plan.engine_version)):
        for place, group, planned in asked:
            for answer in index.values_of(place, group, planned).answers(spelling):
                answers.setdefault(answer, []).append(planned.name)
        if answers:
            break
    found = [attrs.evolve(answer, processes=names) for answer, names in answers.items()]
    if wanted is None:
        found += _of_plan(plan.sources.values, name)
    if not found:
        found += _unset(plan.engine_version, name, catalogues, asked)
    if not found:
        known = dict.fromkeys(name for each in asked for name in index.values_of(*each).names())
        programs = _programs(catalogues, plan.engine_version) if name.startswith("-") else {}
        flags = [flag for catalogue in programs.values() for flag in catalogue.names()]
        raise _unknown(name, [*known, *_PLAN_KEYS, *flags], wanted)
    return tuple(found)


def render_explanations(explanations: Iterable[Explanation]) -> str:
    """Explanations as text: the value, who set it, and each value that was replaced, one line each."""
    lines: list[str] = []
    for each in explanations:
        where = f"  ({', '.join(each.processes)})" if each.processes else ""
        lines.append(printable(f"{each.name} = {each.value or '(empty)'}{where}"))
        lines.append(printable(f"  set by    {each.source or 'not recorded'}"))
        lines += [printable(f"  replaces  {text or '(empty)'}  from {source}") for source, text in each.replaced]
    return "\n".join(lines) + "\n" if lines else ""


# --- what is asked for -------------------------------------------------------------------------------------------

_PLAN_KEYS = ("engine", "engine_version", "connector", "model")


def _of_plan(values: Mapping[str, Provenance], name: str) -> Iterator[Explanation]:
    provenance = values.get(f"/{name}") if name in _PLAN_KEYS else None
    if provenance:
        (source, text), *replaced = provenance
        yield Explanation(name=name, value=text, source=source, replaced=replaced)


def _parted(plan: LaunchPlan, query: str, process: str | None) -> tuple[frozenset[str] | None, str]:
    """The processes that are meant (None = all), and the name of the value."""
    target, name = process, query
    if ":" in query and not query.startswith("-"):
        target, _, name = query.partition(":")
    if target is None:
        return None, name
    names = plan.process_names()
    if target in names:
        return frozenset({target}), name
    of_role = frozenset(each.name for _, _, each in _processes(plan) if each.role == target)
    if of_role:
        return of_role, name
    raise SpecError(f"the plan has no process {target!r}", remedy=_nearest(target, names))


def _other_spellings(name: str, catalogues: Iterable[CatalogueRef], version: str) -> Iterator[str]:
    """The flag's aliases and negations, with the JSON key that was asked for; read only where they are needed."""
    base, dot, key = name.partition(".")
    for catalogue in _programs(catalogues, version).values():
        spec = catalogue.lookup(_dashed(base))
        if spec is not None:
            yield from (f"{other}{dot}{key}" for other in (*spec.names, *sorted(spec.negations)))


def _programs(catalogues: Iterable[CatalogueRef], version: str) -> dict[str, Catalogue]:
    """The catalogue that counts for each program, as the plan picked it."""
    refs = tuple(catalogues)
    found = {ref.program: pick_catalogue(refs, ref.program, version) for ref in refs}
    return {program: picked[0] for program, picked in found.items() if picked}


def _dashed(name: str) -> str:
    return name if name.startswith("-") else f"--{name}"


def _unset(
    version: str, name: str, catalogues: Iterable[CatalogueRef], asked: Iterable[tuple[_Place, Group, PlannedProcess]]
) -> Iterator[Explanation]:
    """A flag that a program has and nobody sets."""
    kinds: dict[str, list[str]] = {}
    for _, _, process in asked:
        kinds.setdefault(process.kind, []).append(process.name)
    for program, catalogue in _programs(catalogues, version).items():
        spec = catalogue.lookup(_dashed(name))
        if spec is not None and program in kinds:
            source = Source(layer=Layer.ENGINE, why="nobody sets it, the program's own default holds")
            yield Explanation(name=spec.name, value="not set", source=source, processes=kinds[program])


def _unknown(name: str, known: Sequence[str], wanted: frozenset[str] | None) -> PlanError:
    where = "the plan" if wanted is None else sorted(wanted)[0] if len(wanted) == 1 else "those processes"
    option = _option(name)
    remedy = f"{option} is an option: ask for a flag or variable that follows from it" if option else ""
    return PlanError(f"nothing in {where} is called {name!r}", remedy=remedy or _nearest(name, known))


def _option(name: str) -> str:
    """The option of disagg-run that is called so, on the command line, in a run file or in a job script; "" = none."""
    from disagg_run.spec.options import OPTIONS

    asked = plain(name).replace(".", "-")
    for option in OPTIONS:
        names = (option.flag, option.key_text, option.dotted, *option.contract)
        if asked and asked in (plain(each).replace(".", "-") for each in names):
            return option.flag
    return ""


def _nearest(name: str, known: Sequence[str]) -> str:
    meant = did_you_mean(name, known) or did_you_mean(plain(name), known)
    return meant or f"it has {', '.join(list(known)[:12])}, …"


#: A process's place in the document: index of its rank, its group and itself.
_Place = tuple[int, int, int]


def _processes(plan: LaunchPlan) -> Iterator[tuple[_Place, Group, PlannedProcess]]:
    for rank_number, rank in enumerate(plan.ranks):
        for group_number, group in enumerate(rank.groups):
            for number, process in enumerate(group.processes):
                yield (rank_number, group_number, number), group, process


class _Index:
    """Provenance by process or group, so that not all pointers are read again for each."""

    def __init__(self, values: Mapping[str, Provenance]) -> None:
        self._by_prefix: dict[str, dict[tuple[str, ...], Provenance]] = {}
        for pointer, provenance in values.items():
            parts = pointer.split("/")
            depth = 7 if len(parts) > 7 and parts[5] == "processes" else 5
            rest = tuple(part.replace("~1", "/").replace("~0", "~") for part in parts[depth:])
            self._by_prefix.setdefault("/".join(parts[:depth]), {})[rest] = provenance

    def values_of(self, place: _Place, group: Group, process: PlannedProcess) -> ProcessValues:
        """What can be explained of the process at ``place``."""
        prefix = f"/ranks/{place[0]}/groups/{place[1]}"
        return ProcessValues(
            process,
            group,
            self._by_prefix.get(f"{prefix}/processes/{place[2]}", {}),
            self._by_prefix.get(prefix, {}),
        )
