"""Flags and variables that follow from the plan: one by hand that says otherwise is refused."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable
from typing import Any

from disagg_run.catalogue import Catalogue
from disagg_run.context import ProcessContext
from disagg_run.errors import FlagError, SpecError
from disagg_run.flag_claims import dotted_key
from disagg_run.flag_meaning import says, words_meaning
from disagg_run.flags import MergedFlag, json_leaf
from disagg_run.planning.alike_keys import spelled_alike
from disagg_run.planning.environment import MergedEnv
from disagg_run.planning.secret_values import A_SECRET, hidden
from disagg_run.records import EnvSetting, Flag
from disagg_run.sources import CORE_DEFAULT, Source
from disagg_run.spec.model import LaunchSpec


def check_owned(
    planned: Iterable[Flag],
    further: Iterable[Flag],
    merged: Iterable[MergedFlag],
    catalogue: Catalogue | None,
    ctx: ProcessContext,
) -> None:
    """Hold what others gave to a command against those ``planned`` flags, and leaves of them, that the plan says.

    ``further``: by plugins beside the engine and by the user's own words; ``merged``: what came of all. GPUs,
    placement, probes, roles and parity follow the option, and would not follow the flag. Raises FlagError naming both
    and what to do instead.
    """
    rivals = {_read_as(flag.name, catalogue) for flag in further if not (flag.option or flag.leaf_options)}
    if not rivals:
        return
    owned: dict[str, list[Flag]] = {}
    for flag in planned:
        if (flag.option or flag.leaf_options) and _identity(flag.name, catalogue) in rivals:
            owned.setdefault(_identity(flag.name, catalogue), []).append(flag)
    for given in merged:
        mine = owned.get(_read_as(given.name, catalogue), [])
        whole = [flag for flag in mine if flag.option]
        if whole and not any(_agree(flag, given, catalogue) for flag in whole):
            raise _contradiction(whole[0], given, ctx)
        for flag in () if given.json is None and _is_too_deep(given) else mine:
            _check_leaves(flag, given, ctx)


def without_repeats(
    planned: Iterable[Flag], merged: tuple[MergedFlag, ...], catalogue: Catalogue | None
) -> tuple[MergedFlag, ...]:
    """The flags without those that say by the beginning of a name, ``--tp``, just what a ``planned`` one says."""
    if catalogue is None or all(catalogue.lookup(given.name) is not None for given in merged):
        return merged
    owned = {_identity(flag.name, catalogue): flag for flag in planned if flag.option and flag.values}

    def repeats(given: MergedFlag) -> bool:
        own = owned.get(_read_as(given.name, catalogue)) if catalogue.lookup(given.name) is None else None
        spec = catalogue.lookup(own.name) if own else None
        return own is not None and bool(words_meaning(given.values, spec) == words_meaning(own.values, spec))

    return tuple(given for given in merged if not repeats(given))


def check_owned_env(planned: Iterable[EnvSetting], env: MergedEnv, ctx: ProcessContext) -> None:
    """Hold a process's environment against the ``planned`` variables that follow from the plan.

    Raises SpecError naming both and what to do instead.
    """
    for mine in planned:
        if not mine.option:
            continue
        value, source = _variable(mine.name, env)
        meant = mine.value if mine.op == "set" else None
        if value == meant or value in mine.agreeing or (value is None and mine.implied):
            continue
        planned_as = f"made without {mine.name}" if meant is None else f"made for {meant!r}"
        if mine.contrary:
            if value not in mine.contrary:
                continue
            planned_as = "not made for that"
        given = "taken away" if value is None else hidden(mine.name, value)
        raise SpecError(
            f"{mine.name} of {ctx.process.name} is {given} ({source}), but the plan is {planned_as}"
            f" ({mine.source or CORE_DEFAULT})",
            remedy=_instead(mine.option, env.env.get(mine.name)),
        )


def _variable(name: str, env: MergedEnv) -> tuple[str | None, Source]:
    """What a process has of the variable, None = it has none, and who said so."""
    for section, value in (("env", env.env.get(name)), ("secrets", A_SECRET), ("unset", None)):
        chain = env.provenance.get(f"{section}/{name}")
        if chain:
            return value, chain[0][0]
    return None, CORE_DEFAULT


def _contradiction(own: Flag, given: MergedFlag, ctx: ProcessContext) -> FlagError:
    meant = " ".join(own.values) or own.name
    planned = f"made without {own.name}" if own.implied and not own.values else f"made for {meant!r}"
    if own.contrary:
        planned = "not made for that"
    text = hidden(given.name, given.text)
    return FlagError(
        f"{given.name} of {ctx.process.role or ctx.process.name} says {text} ({given.source}), but the plan is"
        f" {planned} ({own.source or CORE_DEFAULT})",
        remedy=_remedy(own, given, ctx),
    )


def _identity(name: str, catalogue: Catalogue | None) -> str:
    spec = catalogue.lookup(name) if catalogue else None
    return spec.name if spec else name


def _read_as(name: str, catalogue: Catalogue | None) -> str:
    """The flag as which a parser reads ``name``: argparse takes the beginning of a name where it fits one flag only.

    A catalogue of another version lets such a name pass with a warning.
    """
    if catalogue is None or catalogue.lookup(name) is not None:
        return _identity(name, catalogue)
    longer = {_identity(each, catalogue) for each in catalogue.longer(name)}
    return longer.pop() if len(longer) == 1 else name


def _agree(own: Flag, given: MergedFlag, catalogue: Catalogue | None) -> bool:
    off = catalogue is not None and catalogue.is_negation(given.name)
    if own.contrary:
        return not set(given.values).intersection(own.contrary)
    if not own.values:  # a switch
        return off == (own.implied or (catalogue is not None and catalogue.is_negation(own.name)))
    if len(given.values) == 1 and given.values[0] in own.agreeing:
        return True
    spec = catalogue.lookup(own.name) if catalogue else None
    return bool(words_meaning(given.values, spec) == words_meaning(own.values, spec))


def _is_too_deep(given: MergedFlag) -> bool:
    """Whether a value is JSON that nobody can read, which check_flags tells of."""
    try:
        for word in given.values:
            json.loads(word)
    except RecursionError:
        return True
    except ValueError:
        pass
    return False


def _check_leaves(own: Flag, given: MergedFlag, ctx: ProcessContext) -> None:
    process = ctx.process.role or ctx.process.name
    for path, option in own.leaf_options.items():
        keys = path.split(".")
        meant = json_leaf(own.json, keys)
        value = json_leaf(given.json, keys)
        if not says(value, meant) and str(value) not in own.leaf_agreeing.get(path, ()):
            planned = f"without {path}" if meant is None else f"for {meant!r}"
            raise FlagError(
                f"{path} of {given.name} of {process} is {'not set' if value is None else repr(value)}"
                f" ({_leaf_source(given, path)}), but the plan is made {planned}"
                f" ({own.leaf_sources.get(path, own.source) or CORE_DEFAULT})",
                remedy=_instead(option, value),
            )
        for alike in spelled_alike(given.json, tuple(keys)):
            other = dotted_key(alike)
            raise FlagError(
                f"{other!r} of {given.name} of {process} ({_leaf_source(given, other)}) is another key than {path!r},"
                " which the plan sets",
                remedy=_instead(option),
            )


def _leaf_source(flag: MergedFlag, path: str) -> Source:
    return flag.leaf_sources.get(path, flag.source)


def _instead(option: str, value: object = None) -> str:
    """What to do about a ``value`` that no option has in the same form, but perhaps a setting."""
    from disagg_run.spec.options import by_dotted  # most plans never ask

    setting = option.removeprefix("settings.")
    if setting != option and isinstance(value, (str, int, float)):
        text = str(value).lower() if isinstance(value, bool) else str(value)
        return f"use --set {shlex.quote(f'{setting}={text}')} in its place"
    known = by_dotted().get(option)
    return f"leave it out: it follows from {known.flag}" if known else "leave it out"


def _remedy(own: Flag, flag: MergedFlag, ctx: ProcessContext) -> str:
    """The option to use in the flag's place; where it has no such value of its own, what the flag follows from."""
    from disagg_run.spec.options import by_dotted

    option = by_dotted().get(own.option)
    if own.option == "connector" and own.values:
        named = ctx.engine.kv_transfers.get(" ".join(flag.values))  # the engine's word for it, not ours
        return f"use --connector {named} in its place" if named else _instead(own.option)
    if option is not None:
        current = _value(ctx.spec, own.option)
        if isinstance(current, bool) and not own.values:
            return f"use {option.flag if own.implied else option.flag.replace('--', '--no-', 1)} in its place"
        if len(flag.values) == 1 and (current is None or (str(current),) == own.values):
            return f"use {option.flag} {shlex.quote(flag.values[0])} in its place"
    return _instead(own.option, flag.values[0] if len(flag.values) == 1 else None if own.values else own.implied)


def _value(spec: LaunchSpec, path: str) -> Any:
    value: Any = spec
    for part in path.split("."):
        value = getattr(value, part)
    return value
