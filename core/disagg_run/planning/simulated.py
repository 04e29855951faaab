"""What is really started under ``--simulate``."""

from __future__ import annotations

from collections.abc import Iterable

from disagg_run.context import ProcessContext
from disagg_run.errors import SpecError
from disagg_run.host import Selection
from disagg_run.near_miss import did_you_mean
from disagg_run.plain_text import listed
from disagg_run.sources import Layer
from disagg_run.spec.model import ROLES, LaunchSpec


def stand_in_exec(
    selection: Selection, ctx: ProcessContext, argv: tuple[str, ...], program: tuple[str, ...]
) -> tuple[str, ...]:
    """The words that start a process's stand-in; () where it is no simulation or nobody answers.

    ``program`` are the leading words of ``argv`` that name the real program.
    """
    answers = selection.simulation(ctx) if ctx.spec.simulate else ()
    if not answers:
        return ()
    answer = answers[0].record
    if not answer.stand_in:
        return (*answer.program, *argv[len(program) :])
    chosen = ctx.spec.simulation
    targets = ("all", *((ctx.process.role,) if ctx.process.role else ()), ctx.process.name)
    words = tuple(word for target in targets for word in chosen.get(target, ()))
    return (*answer.program, *words, "--", *argv)


def check_targets(spec: LaunchSpec, names: Iterable[str]) -> None:
    """Refuse what is asked of a process that the plan does not have: a slip would otherwise do nothing, in silence.

    ``names``: of the plan's processes. Raises SpecError naming who asked.
    """
    names = set(names)
    if not spec.simulate:
        for target in sorted(spec.simulation):
            typed = spec.source(f"simulation.{target}")
            # A run file may keep its stand-ins' options for the next simulation.
            if typed.layer >= Layer.COMMAND_LINE:
                raise SpecError(f"{typed} is for stand-ins, but this is no simulation", remedy="add --simulate")
    asked = [(target, f"processes.{target}") for target in spec.processes if target not in names]
    targets = {*names, *ROLES, "all"}
    asked += [(target, f"simulation.{target}") for target in spec.simulation if target not in targets]
    for target, path in asked:
        source = next((str(spec.sources[key]) for key in sorted(spec.sources) if key.startswith(path)), "the spec")
        raise SpecError(
            f"{source} is for {target!r}, but the plan has no such process",
            remedy=f"{did_you_mean(target, sorted(names))} it has {listed(sorted(names))}".lstrip(),
        )
