"""The differences that are right: faults of the reference by number, each with one line of proof.

``differences/<engine>.yaml``::

    recorded: {entries: 1, differences: 4}     # a change of either must be made on purpose
    allowed:
      - number: A1                  # of docs/faults.md, or the engine's own with a letter of its own
        cases: ["atom/m3_*"]        # patterns of case names; one that matches nothing is refused
        process: "*"                # pattern of process names
        item: env MAX_MODEL_LEN     # as Difference.item, or a pattern
        kind: absent                # absent | added | differs
        proof: …
    refused:                        # inputs that we refuse, and the input that is compared instead
      - number: A2
        case: atom/dsv4_1p1d_overrides
        error: "'--seed'"           # must stand in the error
        instead: {EXTRA_SERVER_ARGS: --enforce-eager}
        proof: …
"""

from __future__ import annotations

import collections
import functools
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import attrs
import pytest
import yaml

from disagg_run import DisaggError
from tests.parity import case as cases
from tests.parity.comparing import Difference, compare

TABLES = Path(__file__).parent / "differences"


@attrs.frozen(kw_only=True)
class Allowed:
    """A difference that is right."""

    number: str
    cases: tuple[str, ...] = attrs.field(converter=tuple)
    process: str
    item: str
    kind: str = attrs.field(validator=attrs.validators.in_(("absent", "added", "differs")))
    proof: str = attrs.field(validator=attrs.validators.min_len(20))

    def covers(self, difference: Difference) -> bool:
        """Whether ``difference`` is the one that is meant."""
        return (
            difference.kind == self.kind
            and fnmatchcase(difference.item, self.item)
            and fnmatchcase(difference.process, self.process)
            and any(fnmatchcase(difference.case, pattern) for pattern in self.cases)
        )


@attrs.frozen(kw_only=True)
class Refused:
    """An input of the corpus that we refuse, rightly."""

    number: str
    case: str
    error: str
    #: Variables with which the case is compared instead.
    instead: Mapping[str, str]
    proof: str = attrs.field(validator=attrs.validators.min_len(20))


@attrs.frozen(kw_only=True)
class Table:
    """One engine's table."""

    recorded: Mapping[str, int]
    allowed: tuple[Allowed, ...]
    refused: tuple[Refused, ...] = ()


@attrs.frozen(kw_only=True)
class Result:
    """A case, compared."""

    #: Differences that no entry allows.
    unexplained: tuple[Difference, ...]
    #: The others, each with its entry.
    explained: tuple[tuple[Difference, Allowed], ...]


@functools.cache
def table(engine: str) -> Table:
    """The table of one engine of the corpus."""
    data: dict[str, Any] = yaml.safe_load((TABLES / f"{engine}.yaml").read_text(encoding="utf-8"))
    return Table(
        recorded=data["recorded"],
        allowed=tuple(Allowed(**entry) for entry in data["allowed"]),
        refused=tuple(Refused(**entry) for entry in data.get("refused", ())),
    )


@functools.cache
def result(name: str) -> Result:
    """One case against our plan; fails where an input that we must refuse is taken."""
    case, known = cases.load(name), table(name.partition("/")[0])
    refusals = [entry for entry in known.refused if entry.case == name]
    changes: dict[str, str] = {}
    for entry in refusals:
        refuse(case, entry)
        changes |= entry.instead
    explained, unexplained = [], []
    for difference in compare(case, case.plan(changes)):
        allowed = next((entry for entry in known.allowed if entry.covers(difference)), None)
        if allowed is None:
            unexplained.append(difference)
        else:
            explained.append((difference, allowed))
    return Result(unexplained=tuple(unexplained), explained=tuple(explained))


def refuse(case: cases.Case, entry: Refused) -> None:
    """Check that the case's own input is refused, and for the reason that the entry gives."""
    with pytest.raises(DisaggError) as refusal:
        case.plan()
    assert entry.error in str(refusal.value)


def lines(engine: str) -> list[str]:
    """The table as text, one line an entry."""
    known = table(engine)
    found = [f"{engine}: {known.recorded['entries']} entries, {known.recorded['differences']} differences"]
    for entry in known.allowed:
        found.append(f"  {entry.number}  {entry.item} {entry.kind} in {' '.join(entry.cases)}: {entry.proof}")
    for refusal in known.refused:
        found.append(f"  {refusal.number}  {refusal.case} refused ({refusal.error}): {refusal.proof}")
    return found


def count_line(compared: Iterable[str]) -> str:
    """How many cases were compared, how many of them are equal, and how many have differences, by number."""
    results = {name: result(name) for name in compared}
    numbers = [{entry.number for _, entry in each.explained} for each in results.values()]
    carried = collections.Counter(number for each in numbers for number in each)
    told = [f"{number} in {carried[number]}" for number in sorted(carried, key=_by_letter)]
    equal = sum(not each.explained and not each.unexplained for each in results.values())
    other = [entry.case for engine in cases.COMPARED for entry in table(engine).refused if entry.case in results]
    parts = [f"{equal} equal, {sum(map(bool, numbers))} with numbered differences ({', '.join(told) or 'none'})"]
    parts += [f"compared with another input than their own, which is refused: {', '.join(other)}"] if other else []
    unexplained = [name for name, each in results.items() if each.unexplained]
    parts += [f"with differences that no number explains: {', '.join(unexplained)}"] if unexplained else []
    return f"{len(results)} of {len(cases.names(*cases.COMPARED))} cases compared: {'; '.join(parts)}"


def _by_letter(number: str) -> tuple[str, int]:
    """A1, A2, …, A10, B1: by letter, then as a number."""
    return number[0], int(number[1:])
