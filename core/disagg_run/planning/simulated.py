"""What is really started under ``--simulate``."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from disagg_run.context import ProcessContext
from disagg_run.errors import ConflictError, SpecError
from disagg_run.host import Selection
from disagg_run.spec.model import ROLES, LaunchSpec


def stand_in_exec(
    selection: Selection, ctx: ProcessContext, argv: tuple[str, ...], program: tuple[str, ...]
) -> tuple[str, ...]:
    """The words that start a process's stand-in; () where it is no simulation or nobody answers.

    ``program`` are the leading words of ``argv`` that name the real program. Raises ConflictError for two answers.
    """
    answers = selection.simulation(ctx) if ctx.spec.simulate else ()
    if not answers:
        return ()
    name = ctx.process.name
    if len(answers) > 1:
        plugins = ", ".join(repr(answer.plugin) for answer in answers)
        raise ConflictError(f"plugins {plugins} all answer disagg_simulation for {name}", remedy="disable all but one")
    answer = answers[0].record
    if not answer.stand_in:
        return (*answer.program, *argv[len(program) :])
    chosen = ctx.spec.simulation
    targets = ("all", *((ctx.process.role,) if ctx.process.role else ()), name)
    words = tuple(word for target in targets for word in chosen.get(target, ()))
    return (*answer.program, *words, "--", *argv)


def check_targets(spec: LaunchSpec, names: Iterable[str]) -> None:
    """Refuse what is asked of a process that the plan does not have: a slip would otherwise do nothing, in silence."""
    names = set(names)
    asked = [(target, f"processes.{target}") for target in spec.processes if target not in names]
    targets = {*names, *ROLES, "all"}
    asked += [(target, f"simulation.{target}") for target in spec.simulation if target not in targets]
    for target, path in asked:
        near = difflib.get_close_matches(target, sorted(names), 1, 0.6)
        source = next((str(spec.sources[key]) for key in sorted(spec.sources) if key.startswith(path)), "the spec")
        raise SpecError(
            f"{source} is for {target!r}, but the plan has no such process",
            remedy=(f"did you mean {near[0]!r}? " if near else "") + f"it has {_some(sorted(names))}",
        )


def _some(names: list[str], most: int = 12) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
