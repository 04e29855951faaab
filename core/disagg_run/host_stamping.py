"""Checking what a hook returned, and writing on each value which plugin set it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import attrs

from disagg_run.records import (
    Command,
    EnvSetting,
    Flag,
    Listener,
    ServiceProcess,
    Workload,
)
from disagg_run.sources import Layer, Source


class WrongRecord(TypeError):
    """A record holds something that it must not hold; the message is the rest of a sentence that names the plugin."""


@attrs.frozen
class Stamp:
    """Writes one plugin's name on what it returned."""

    #: Source of values that bear none.
    default: Source

    def record(self, record: Any) -> Any:
        """``record`` with its sources filled in; WrongRecord where a part of it is of the wrong type."""
        stamp = _STAMPS.get(type(record))
        return stamp(self, record) if stamp else record

    def _source(self, source: Source | None) -> Source:
        if source is None:
            return self.default
        if source.plugin is None and Layer.ENGINE <= source.layer <= Layer.SITE:
            return attrs.evolve(source, plugin=self.default.plugin)
        return source

    # A large plan has 100,000 flags: what has a source is kept, the rest built anew, twice as fast as by attrs.evolve.

    def _flag(self, flag: Flag) -> Flag:
        _text(flag.name, "the name of a Flag")
        for value in flag.values:
            _text(value, f"a value of {flag.name}")
        if flag.json is not None:
            _json_object(flag.json, flag.name)
        source, leaves = self._source(flag.source), flag.leaf_sources
        if leaves:
            leaves = {path: self._source(each) for path, each in leaves.items()}
        elif source is flag.source:
            return flag
        return Flag(
            flag.name,
            flag.values,
            json=flag.json,
            source=source,
            leaf_sources=leaves,
            remark=flag.remark,
            option=flag.option,
            leaf_options=flag.leaf_options,
            agreeing=flag.agreeing,
            leaf_agreeing=flag.leaf_agreeing,
            contrary=flag.contrary,
            implied=flag.implied,
            joined=flag.joined,
            per_node=flag.per_node,
        )

    def _env(self, setting: EnvSetting) -> EnvSetting:
        _text(setting.name, "the name of an EnvSetting")
        _text(setting.value, f"the value of {setting.name}")
        source = self._source(setting.source)
        if source is setting.source:
            return setting
        return attrs.evolve(setting, source=source)

    def _listener(self, listener: Listener) -> Listener:
        _text(listener.name, "the name of a Listener")
        source = self._source(listener.source)
        return listener if source is listener.source else attrs.evolve(listener, source=source)

    def _command(self, command: Command) -> Command:
        if not command.program:
            raise WrongRecord("a Command without a program")
        for word in command.program:
            _text(word, "a program word of a Command")
        flags = tuple(self._flag(_typed(flag, Flag, "the flags of a Command")) for flag in command.flags)
        return Command(program=command.program, flags=flags, image=command.image)

    def _service(self, service: ServiceProcess) -> ServiceProcess:
        what = f"service {service.name!r}"
        return attrs.evolve(
            service,
            command=self._command(_typed(service.command, Command, f"the command of {what}")),
            env=tuple(self._env(_typed(item, EnvSetting, f"the env of {what}")) for item in service.env),
            listeners=tuple(
                self._listener(_typed(item, Listener, f"the listeners of {what}")) for item in service.listeners
            ),
        )

    def _workload(self, workload: Workload) -> Workload:
        return attrs.evolve(
            workload,
            command=self._command(_typed(workload.command, Command, "the command of a Workload")),
            env=tuple(self._env(_typed(item, EnvSetting, "the env of a Workload")) for item in workload.env),
        )


_STAMPS: dict[type, Callable[[Stamp, Any], Any]] = {
    Flag: Stamp._flag,
    EnvSetting: Stamp._env,
    Listener: Stamp._listener,
    Command: Stamp._command,
    ServiceProcess: Stamp._service,
    Workload: Stamp._workload,
}


def _json_object(value: object, name: str) -> None:
    if not isinstance(value, Mapping):
        raise WrongRecord(f"json={value!r} in {name}, a mapping is expected")
    try:
        json.dumps(value, default=_plain)
    except (TypeError, ValueError) as error:
        raise WrongRecord(f"a value of {name} that is no JSON: {error}") from error


def _plain(value: object) -> dict[str, Any]:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(describe(value))


def _text(value: object, what: str) -> None:
    if type(value) is not str:
        raise WrongRecord(f"{describe(value)} as {what}, text is expected")


def _typed(value: Any, wanted: type, what: str) -> Any:
    if not isinstance(value, wanted):
        raise WrongRecord(f"{describe(value)} among {what}, {wanted.__name__} is expected")
    return value


def describe(value: object) -> str:
    """``int 5``: a value as messages show it, cut to a line."""
    text = " ".join(repr(value).split())
    return f"{type(value).__name__} {text if len(text) <= 60 else text[:57] + '...'}"
