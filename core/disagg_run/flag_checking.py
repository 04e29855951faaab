"""Checking a command's flags against what the program's own parser takes."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterable, Sequence

from disagg_run.catalogue import Catalogue, FlagSpec, folded, version_key
from disagg_run.declarations import GoneFlag
from disagg_run.errors import FlagError
from disagg_run.flag_meaning import read_size
from disagg_run.flag_merging import MergedFlag, broken_json, too_deep
from disagg_run.near_miss import nearest
from disagg_run.sources import Layer

#: A number with a decimal (k, M, g …) or binary (K, Ki, Mi …) suffix: what parsers whose own are not known may take.
_SIZE = re.compile(r"\s*\d+(\.\d+)?([kKmMgGtT]i?)\s*\Z")


def check_flags(
    merged: Sequence[MergedFlag],
    catalogue: Catalogue | None,
    exact: bool,
    gone: Iterable[GoneFlag],
    version: str,
    where: str,
) -> tuple[str, ...]:
    """Check every flag of a command; the warnings name no process, so that those of many processes are equal.

    Unknown flags, counts, choices and types of values are errors where the catalogue is ``exact`` (of this very
    ``version``), else warnings. A flag that is ``gone`` at ``version`` is an error; a deprecated one is a warning. An
    abbreviation counts as unknown, although argparse would take it: the next version may add a flag that it also fits.

    Raises FlagError naming the flag, who set it, and what to write instead.
    """
    lost = {record.name: record for record in gone}
    warnings: list[str] = []
    for flag in merged:
        if lost:
            _refuse_gone(flag, lost.get(flag.name), version, where)
        if catalogue is None:
            continue
        spec = catalogue.lookup(flag.name)
        if spec is None:
            record = lost.get(flag.name)
            warnings.append(_unknown(flag, catalogue, exact, version, where, record.successor if record else ""))
            continue
        if spec.deprecated:
            warnings.append(_deprecated(flag, spec, catalogue))
        problem = _problem(flag, spec, catalogue, where if exact else "")
        if problem and exact:
            raise FlagError(f"{where}: {flag.name} ({flag.source}) {problem[0]}", remedy=problem[1])
        if problem:
            planned = f"the plan is for version {version or 'unknown'}"
            warnings.append(f"{flag.name} ({flag.source}) {problem[0]} in {catalogue}; {planned}")
    return tuple(warnings)


def _refuse_gone(flag: MergedFlag, record: GoneFlag | None, version: str, where: str) -> None:
    if record is None:
        return
    since, now = version_key(record.since), version_key(version)
    if not (since[0] and now[0] and now >= since):
        return
    raise FlagError(
        f"{where}: the flag {flag.name!r} ({flag.source}) is gone since {record.since}, and the plan is for {version}",
        remedy=_instead(record.successor),
    )


def _instead(successor: str) -> str:
    return f"write {successor} instead" if successor else "leave it out, nothing replaces it"


def _unknown(flag: MergedFlag, catalogue: Catalogue, exact: bool, version: str, where: str, successor: str) -> str:
    """The warning for a flag that the catalogue does not have; FlagError where the catalogue is exact."""
    longer = catalogue.longer(flag.name)
    known = catalogue.nearest(flag.name)
    if exact:
        option = _option(flag)
        if successor:
            remedy = _instead(successor)
        elif option:
            remedy = f"the launch's own option for it is {option}"
        elif longer:
            remedy = f"it may be short for {' or '.join(longer[:4])}: write the whole name"
        else:
            remedy = f"did you mean {known!r}?" if known else f"see {catalogue.command} --help"
        raise FlagError(f"{where}: {catalogue} has no flag {flag.name!r} ({flag.source})", remedy=remedy)
    near = f"; the nearest that it has is {known!r}" if known else ""
    return (
        f"the flag {flag.name!r} ({flag.source}) is not known: the plan is for version {version or 'unknown'}, "
        f"the flags that are known are those of {catalogue}{near}"
    )


def _option(flag: MergedFlag) -> str:
    """The option of the launch that is called as a flag that somebody gave by hand; "" = none."""
    if flag.source.layer < Layer.CONTRACT:
        return ""
    from disagg_run.spec.options import OPTIONS

    called = f"--{flag.name.lstrip('-')}"
    return next((option.flag for option in OPTIONS if called in (option.flag, *option.aliases)), "")


def _deprecated(flag: MergedFlag, spec: FlagSpec, catalogue: Catalogue) -> str:
    instead = f": write {spec.successor} instead" if spec.successor else ""
    return f"the flag {flag.name!r} ({flag.source}) is deprecated in {catalogue}{instead}"


def _problem(flag: MergedFlag, spec: FlagSpec, catalogue: Catalogue, where: str) -> _Problem | None:
    """What the parser would refuse; None = nothing."""
    if flag.json is not None:
        is_scalar = spec.kind in ("int", "float", "size") or spec.choices or spec.max_values == 0
        return ("takes no JSON object", "") if is_scalar else None
    if spec.negations and catalogue.is_negation(flag.name):
        return ("is a switch and takes no value", "write it alone") if flag.values else None
    problem = _count_problem(spec, flag.name, flag.values) or _value_problem(spec, flag.values)
    if problem and spec.kind in ("json", "json_object") and len(flag.values) == 1:
        try:
            json.loads(flag.values[0])
        except RecursionError:
            raise FlagError(f"{where}: {too_deep(flag.name, flag.source)}") from None
        except json.JSONDecodeError as error:
            raise broken_json(flag.name, flag.values[0], error, flag.source, where) from error
    return problem


#: What is wrong, as said of the flag, and the remedy.
_Problem = tuple[str, str]


def _count_problem(spec: FlagSpec, name: str, values: tuple[str, ...]) -> _Problem | None:
    count, least, most = len(values), spec.min_values, spec.max_values
    if least <= count and (most is None or count <= most):
        return None
    got = repr(" ".join(values))
    if most == 0:
        return f"is a switch and takes no value, not {got}", "write it alone"
    wanted = f"{least}" if least == most else f"at least {least}" if most is None else f"{least} to {most}"
    wanted += " value" if wanted in ("1", "at least 1") else " values"
    if not count:
        return f"takes {wanted} and has none", f"a value that begins with a dash is written {name}=VALUE"
    return f"takes {wanted}, not {count}: {got}", ""


@functools.lru_cache(maxsize=8192)
def _value_problem(spec: FlagSpec, values: tuple[str, ...]) -> _Problem | None:
    """The first value that is not of the flag's kind or choices."""
    for value in values:
        if value in spec.literals:
            continue
        if spec.kind and not _is_of_kind(value, spec):
            known = f": {', '.join(spec.suffixes)}" if spec.suffixes else " such as 8k"
            return f"takes {_KIND_WORDS[spec.kind]}{known if spec.kind == 'size' else ''}, not {value!r}", ""
        if spec.choices and not _is_choice(value, spec):
            return f"does not take {value!r}", _choices_remedy(value, spec)
    return None


_KIND_WORDS = {
    "str": "text",
    "int": "an integer",
    "float": "a number",
    "size": "an integer, or one with a suffix",
    "json": "JSON",
    "json_object": "a JSON object",
    "json_or_text": "a JSON object or plain text",
}


def _is_of_kind(value: str, spec: FlagSpec) -> bool:
    kind = spec.kind
    try:
        if kind == "int":
            int(value)
        elif kind == "float":
            float(value)
        elif kind == "size":
            loose = not spec.suffixes and _SIZE.match(value)
            return bool(loose) or read_size(value, spec.suffixes) is not None
        elif kind == "json":
            json.loads(value)
        elif kind == "json_object":
            return isinstance(json.loads(value), dict)
        elif kind == "json_or_text" and value.lstrip().startswith("{"):
            json.loads(value)
    except (ValueError, RecursionError):
        return False
    return True


def _is_choice(value: str, spec: FlagSpec) -> bool:
    if value in spec.choices:
        return True
    if spec.kind == "int":
        return int(value) in [int(choice) for choice in spec.choices if _is_of_kind(choice, spec)]
    if spec.kind is None:
        return folded(value) in map(folded, spec.choices)
    return False


def _choices_remedy(value: str, spec: FlagSpec) -> str:
    by_folded = {folded(choice): choice for choice in spec.choices}
    near = nearest(folded(value), by_folded)
    meant = f"did you mean {by_folded[near]!r}? " if near else ""
    return f"{meant}it takes {', '.join(spec.choices)}"
