"""Flags that follow from the plan's own options: one by hand that says otherwise is refused."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from typing import Any

from disagg_run.catalogue import Catalogue
from disagg_run.context import ProcessContext
from disagg_run.errors import FlagError
from disagg_run.flags import MergedFlag
from disagg_run.records import Flag
from disagg_run.sources import CORE_DEFAULT
from disagg_run.spec.model import LaunchSpec


def check_owned(
    own: Iterable[Flag],
    further: Iterable[Flag],
    merged: Iterable[MergedFlag],
    catalogue: Catalogue | None,
    ctx: ProcessContext,
) -> None:
    """Hold what others gave to a command against those of its ``own`` flags that an option of the plan says.

    ``further``: by other plugins and by the user's own words; ``merged``: what came of all. GPUs, placement, probes and
    parity follow the option, and would not follow the flag. Raises FlagError naming both and the option to use.
    """
    rivals = {_identity(flag.name, catalogue) for flag in further}
    for mine in own:
        if not mine.option or _identity(mine.name, catalogue) not in rivals:
            continue
        for flag in merged:
            if _identity(flag.name, catalogue) == _identity(mine.name, catalogue):
                _check(mine, flag, catalogue, ctx)


def _check(own: Flag, flag: MergedFlag, catalogue: Catalogue | None, ctx: ProcessContext) -> None:
    if _agree(own, flag, catalogue):
        return
    meant = " ".join(own.values) or own.name
    planned = f"without {own.name}" if own.implied and not own.values else f"for {meant!r}"
    raise FlagError(
        f"{flag.name} of {ctx.process.role or ctx.process.name} says {flag.text!r} ({flag.source}), but the plan is"
        f" made {planned} ({own.source or CORE_DEFAULT})",
        remedy=_remedy(own, flag, ctx.spec),
    )


def _identity(name: str, catalogue: Catalogue | None) -> str:
    spec = catalogue.lookup(name) if catalogue else None
    return spec.name if spec else name


def _agree(own: Flag, flag: MergedFlag, catalogue: Catalogue | None) -> bool:
    off = catalogue is not None and catalogue.is_negation(flag.name)
    if not own.values:  # a switch
        return off == (own.implied or (catalogue is not None and catalogue.is_negation(own.name)))
    return flag.values == own.values


def _remedy(own: Flag, flag: MergedFlag, spec: LaunchSpec) -> str:
    """The option to use in the flag's place; where it has no such value of its own, what the flag follows from."""
    from disagg_run.spec.options import by_dotted  # most plans never ask

    option = by_dotted().get(own.option)
    if option is None:
        return "leave it out"
    current = _value(spec, own.option)
    if isinstance(current, bool) and not own.values:
        return f"use {option.flag if own.implied else option.flag.replace('--', '--no-', 1)} in its place"
    if len(flag.values) == 1 and (current is None or (str(current),) == own.values):
        return f"use {option.flag} {shlex.quote(flag.values[0])} in its place"
    return f"leave it out: it follows from {option.flag}"


def _value(spec: LaunchSpec, path: str) -> Any:
    value: Any = spec
    for part in path.split("."):
        value = getattr(value, part)
    return value
