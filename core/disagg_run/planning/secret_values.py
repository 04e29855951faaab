"""Secrets given as values: a plan holds the names of secrets alone, and its readers are not only those who may know."""

from __future__ import annotations

import re
from collections.abc import Iterable

from disagg_run.context import ProcessContext
from disagg_run.errors import FlagError, SpecError
from disagg_run.flags import MergedFlag
from disagg_run.records import EnvSetting
from disagg_run.sources import Layer

#: Name of the check that an expert waives to write a value into the plan that looks like a secret.
SECRET_CHECK = "plain-secrets"

#: What messages say in a secret's place.
A_SECRET = "a secret"

_NAME = re.compile(r"(.*_)?(API_?KEY|(ACCESS|PRIVATE|SECRET)_KEY|SECRET|TOKEN|PASSWORD|PASSWD)", re.IGNORECASE)
#: Numbers and switches, a path to the secret, and what clients of servers without a key write in its place.
_HARMLESS = re.compile(r"[-+]?[0-9.]*|true|false|/.*|~/.*|EMPTY", re.IGNORECASE)


def is_secret(name: str) -> bool:
    """Whether the value of a variable or flag is one that not everybody may read, by its name: ``HF_TOKEN``."""
    return _NAME.fullmatch(name.lstrip("-").replace("-", "_")) is not None


def hidden(name: str, value: str) -> str:
    """A value as messages show it: in quotes, and no secret."""
    return A_SECRET if value is A_SECRET or (is_secret(name) and not _HARMLESS.fullmatch(value)) else repr(value)


def check_asked_env(asked: Iterable[EnvSetting], ctx: ProcessContext) -> None:
    """Refuse secrets among the variables that a user gives a process: they would stand in the plan.

    Raises SpecError, which does not show them; what only looks like a secret passes where the check is waived.
    """
    for each in asked:
        what = f"{each.name} of {ctx.process.name}"
        if each.name in ctx.spec.secrets:
            raise SpecError(
                f"{what} is given a value ({each.source}), but it is a secret ({ctx.spec.source('secrets')})",
                remedy="leave one of them out: a secret is what the environment of each node's agent holds",
            )
        if is_secret(each.name) and not _HARMLESS.fullmatch(each.value) and SECRET_CHECK not in ctx.spec.waive:
            raise SpecError(
                f"the value of {what} ({each.source}) looks like a secret, and would stand in the plan",
                remedy=f"set it where the agents run and pass it on by --secret {each.name}, or let it through with"
                f" --waive {SECRET_CHECK}",
            )


def check_asked_flags(merged: Iterable[MergedFlag], ctx: ProcessContext) -> None:
    """Refuse secrets among the flags that a user gives a process by hand, in the same way. Raises FlagError."""
    for each in merged:
        if each.source.layer < Layer.CONTRACT or not is_secret(each.name) or SECRET_CHECK in ctx.spec.waive:
            continue
        if all(map(_HARMLESS.fullmatch, each.values)):
            continue
        raise FlagError(
            f"the value of {each.name} of {ctx.process.role or ctx.process.name} ({each.source}) looks like a"
            " secret, and would stand in the plan",
            remedy=f"pass it on as a variable by --secret, or let it through with --waive {SECRET_CHECK}",
        )
