"""Plans of the run files in ``examples/`` for tests, and how they differ from what the public launchers run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from disagg_run import LaunchPlan, NodeFacts, plan
from disagg_run.spec.reading import read_spec
from tests.parity.case import host, load
from tests.parity.comparing import compare
from tests.parity.differences import table

EXAMPLES = Path(__file__).parents[1] / "examples"


def planned(name: str, facts: Mapping[int, NodeFacts] | None = None, **options: object) -> LaunchPlan:
    """The plan of the run file ``name``, under further options by their dotted names."""
    recipe = EXAMPLES / f"{name}.yaml"
    return plan(read_spec(options=options, recipe=recipe, environ={}, host=host()), facts, host=host())


def differing(
    name: str, case_name: str, facts: Mapping[int, NodeFacts] | None = None, **options: object
) -> dict[str, set[str]]:
    """Items in which the run file differs from a public case, by process, but for the launchers' numbered faults.

    The plan is for the case's nodes, with its ``facts`` unless others are given, and for the engine version that the
    launchers were written for.
    """
    case = load(case_name)
    asked = {"nodes": case.environ["IPADDRS"], "engine_version": case.engine.version, **options}
    launch = planned(name, case.facts() if facts is None else facts, **asked)
    known = table(case_name.partition("/")[0]).allowed
    found: dict[str, set[str]] = {}
    for each in compare(case, launch):
        if not any(entry.covers(each) for entry in known):
            found.setdefault(each.process, set()).add(each.item)
    return found
