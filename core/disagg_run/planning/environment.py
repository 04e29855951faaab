"""Environment settings of one process, merged by layer."""

from __future__ import annotations

import re
from collections.abc import Iterable

import attrs

from disagg_run.errors import ConflictError, SpecError
from disagg_run.planning.provenance import Provenance
from disagg_run.records import EnvSetting
from disagg_run.sources import CORE_DEFAULT, Source

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


@attrs.frozen(kw_only=True)
class MergedEnv:
    """What one process's environment becomes."""

    env: dict[str, str]
    prepend: dict[str, tuple[str, ...]]
    append: dict[str, tuple[str, ...]]
    unset: tuple[str, ...]
    secrets: tuple[str, ...]
    #: Variables whose value is the node's own (``EnvSetting.per_node``).
    per_node: frozenset[str] = frozenset()
    #: Whether the engine computes on no GPU, so that it does not matter which ones the process sees.
    no_gpus: bool = False
    #: Operation and name (``env/NAME``) -> who set it and what that replaced.
    provenance: dict[str, Provenance]


def merge_env(settings: Iterable[EnvSetting], *, where: str) -> MergedEnv:
    """Merge ``settings`` of the process ``where``; each has its source, and those that are implied set nothing.

    A later layer replaces an earlier one, within the users' layers the later setting of the sequence is the narrower
    target and wins, two plugins of one layer that differ are a ConflictError. Prepends and appends accumulate in layer
    order, the latest layer outermost; one element stands once.
    """
    settings = tuple(settings)
    winners: dict[str, list[EnvSetting]] = {}
    paths: dict[tuple[str, str], list[EnvSetting]] = {}
    for setting in sorted((each for each in settings if not each.implied), key=_layer):
        _check_name(setting, where)
        if setting.op in ("prepend", "append"):
            paths.setdefault((setting.op, setting.name), []).append(setting)
            continue
        chain = winners.setdefault(setting.name, [])
        if chain:
            _check_clash(chain[-1], setting, where)
        chain.append(setting)
    own = frozenset(setting.name for setting in settings if setting.per_node)
    return _merged(winners, paths, own)


def _layer(setting: EnvSetting) -> int:
    return _source(setting).layer


def _source(setting: EnvSetting) -> Source:
    return setting.source or CORE_DEFAULT


def _check_name(setting: EnvSetting, where: str) -> None:
    if not _NAME.match(setting.name):
        raise SpecError(
            f"{setting.name!r} set for {where} by {_source(setting)} is no variable name",
            remedy="use letters, digits and underscores",
        )
    if "\0" in setting.value:
        raise SpecError(
            f"the value of {setting.name} set for {where} by {_source(setting)} holds a NUL character",
            remedy="no process can be given it; take it out",
        )


def _check_clash(before: EnvSetting, after: EnvSetting, where: str) -> None:
    old, new = _source(before), _source(after)
    same = (before.op, before.value) == (after.op, after.value)
    if old.layer is not new.layer or same or new.plugin is None or old.plugin is None:
        return
    if old.plugin == new.plugin:
        raise ConflictError(
            f"plugin {new.plugin!r} sets {after.name} of {where} twice: {_shown(before)} and {_shown(after)}",
            remedy="a plugin gives one value for a variable",
        )
    raise ConflictError(
        f"plugins {old.plugin!r} and {new.plugin!r} both set {after.name} of {where}:"
        f" {_shown(before)} and {_shown(after)}",
        remedy=f"disable one of them, or settle it with --env {after.name}=…",
    )


def _shown(setting: EnvSetting) -> str:
    return setting.op if setting.op in ("unset", "secret") else repr(setting.value)


def _merged(
    winners: dict[str, list[EnvSetting]], paths: dict[tuple[str, str], list[EnvSetting]], per_node: frozenset[str]
) -> MergedEnv:
    provenance: dict[str, Provenance] = {}
    names: dict[str, list[str]] = {"set": [], "unset": [], "secret": []}
    for name in sorted(winners):
        chain = winners[name]
        names[chain[-1].op].append(name)
        provenance[f"{_SECTION[chain[-1].op]}/{name}"] = tuple(
            (_source(setting), setting.value if setting.op == "set" else setting.op) for setting in reversed(chain)
        )
    joined: dict[str, dict[str, tuple[str, ...]]] = {"prepend": {}, "append": {}}
    for (op, name), chain in sorted(paths.items()):
        values = [setting.value for setting in (reversed(chain) if op == "prepend" else chain) if setting.value]
        joined[op][name] = tuple(dict.fromkeys(values))
        provenance[f"{_SECTION[op]}/{name}"] = tuple((_source(setting), setting.value) for setting in reversed(chain))
    return MergedEnv(
        env={name: winners[name][-1].value for name in names["set"]},
        prepend=joined["prepend"],
        append=joined["append"],
        unset=tuple(names["unset"]),
        secrets=tuple(names["secret"]),
        per_node=per_node,
        provenance=provenance,
    )


_SECTION = {
    "set": "env",
    "unset": "unset",
    "secret": "secrets",
    "prepend": "env_prepend",
    "append": "env_append",
}
