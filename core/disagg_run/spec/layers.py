"""Assignments: what one layer says of one field, with its source; the form in which all layers meet."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import attrs

from disagg_run.errors import SpecError
from disagg_run.sources import Source
from disagg_run.spec.model import ROLES, ArgText
from disagg_run.spec.option import Option, Path, Type
from disagg_run.spec.values import BadValueError, check_form, no_nul, option_value, shell_words, variable_name, words

_PROCESS = re.compile(r"[a-z][a-z0-9.@-]*")


@attrs.frozen(kw_only=True)
class Place:
    """Where a layer says something: the source that its values carry, and how an error begins."""

    source: Source
    #: ``--prefill``, ``environment variable xP``, ``dsv4.yaml:7: prefill.workers``.
    text: str

    def error(self, reason: str, *, remedy: str = "") -> SpecError:
        """The error that names this place, to be raised."""
        return SpecError(f"{self.text}: {reason}", remedy=remedy)

    def read(self, reader: Callable[[str], Any], text: str) -> Any:
        """``reader(text)``, with the place put before what it refuses."""
        try:
            return reader(text)
        except BadValueError as error:
            raise self.error(str(error)) from None


@attrs.frozen(kw_only=True)
class Assignment:
    """One value for one field."""

    path: Path
    type: Type
    value: Any
    place: Place
    #: Run-file key of the option, for messages.
    key: str = ""
    #: The value as written.
    text: str = ""


@attrs.frozen(kw_only=True)
class SettingAssignment:
    """A value for a plugin's setting, which can be read only once it is known which plugins the launch has."""

    #: Where settings of its target stand: ``("settings",)``, ``("prefill", "settings")``.
    path: Path
    name: str
    #: The value as written.
    text: str
    #: A list or mapping of a run file; None where the value is one text.
    data: Any = None
    #: The items of a list of single values, as they are written: 0.10 is not 0.1 where a setting is text.
    items: tuple[str, ...] | None = None
    place: Place


AnyAssignment = Assignment | SettingAssignment


def assign(option: Option, text: str, place: Place) -> Iterator[AnyAssignment]:
    """What ``text``, given for ``option`` on a command line or in a variable, says."""
    if option.type == "args":
        yield args_at(option.fields[0], place.read(shell_words, text), place)
    elif option.type == "names":
        for name in place.read(words, text):
            place.read(lambda one: check_form(option.form, one), name)
            yield Assignment(path=option.fields[0], type="names", value=name, place=place, key=option.key_text)
    elif option.type == "simulation":
        target, _, flags = text.partition(":") if re.match(_PROCESS.pattern + ":", text) else ("all", "", text)
        yield assign_simulation(option, target, place.read(shell_words, flags), place)
    elif option.type in ("env", "settings"):
        yield from _assign_named(option, text, place)
    else:
        yield from assign_value(option, place.read(lambda given: option_value(option, given), text), text, place)


def assign_value(option: Option, value: Any, text: str, place: Place) -> Iterator[Assignment]:
    """A plain value for each field of an option."""
    for path in option.fields:
        yield Assignment(path=path, type=option.type, value=value, place=place, key=option.key_text, text=text)


def args_at(path: Path, given: tuple[str, ...], place: Place) -> Assignment:
    """Words for the command of a server or the router."""
    return Assignment(path=path, type="args", value=ArgText(words=given, source=place.source), place=place)


def assign_simulation(option: Option, target: str, flags: tuple[str, ...], place: Place) -> Assignment:
    """Flags for the stand-ins of a target: ``all``, a role, or a process."""
    if not _PROCESS.fullmatch(target):
        raise place.error(f"{target!r} is neither all nor a role nor the name of a process")
    return Assignment(path=(*option.fields[0], target), type="simulation", value=flags, place=place)


def env_at(path: Path, name: str, value: str, place: Place) -> Assignment:
    """One variable under the ``env`` field at ``path``."""
    name = place.read(variable_name, name)
    value = place.read(no_nul, value)
    full = (*path, name)
    return Assignment(path=full, type="env", value=value, place=place, key=".".join(full), text=value)


def _assign_named(option: Option, text: str, place: Place) -> Iterator[AnyAssignment]:
    """``NAME=VALUE``, or ``TARGET:NAME=VALUE`` where the option is for all servers."""
    left, equals, value = text.partition("=")
    if not equals:
        raise place.error(f"{text!r} is not NAME=VALUE")
    target, colon, name = left.rpartition(":")
    base = option.fields[0]
    if colon:
        if len(base) > 1:
            raise place.error(f"{text!r} names a target, which this option is already for")
        base = _narrowed(base, target, place)
    if option.type == "settings":
        name = name.replace("-", "_")
        named = attrs.evolve(place, text=f"{place.text} {name}")
        yield SettingAssignment(path=base, name=name, text=value, place=named)
    else:
        yield env_at(base, name, value, place)


def _narrowed(base: Path, target: str, place: Place) -> Path:
    if target == "all":
        return base
    if target in ROLES or (target == "router" and base == ("env",)):
        return (target, *base)
    if base == ("env",) and _PROCESS.fullmatch(target):
        return ("processes", target, *base)
    known = "prefill, decode" + (", router or the name of a process" if base == ("env",) else " or all")
    raise place.error(f"{target!r} is no target: use {known}")
