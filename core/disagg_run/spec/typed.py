"""Whether a ``LaunchSpec`` that a program built holds what its fields are declared for.

Python checks no types, and a text where a number belongs would fail deep inside the planning. What is read from a
command line, a run file or a variable has its types and bounds already.
"""

from __future__ import annotations

import collections.abc
import types
import typing
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Literal, Union

import attrs

from disagg_run.errors import SpecError
from disagg_run.spec.model import LaunchSpec, Node


def check_types(spec: LaunchSpec) -> None:
    """Refuse the first value of ``spec`` that is not of its field's type, with SpecError naming the field."""
    for path, value, hint in _wrong(spec, LaunchSpec, ""):
        remedy = "write Node(address=…)" if hint is Node else ""
        raise SpecError(f"{path} of LaunchSpec is {value!r}, but {_shown(hint)} is expected", remedy=remedy)


def check_most(spec: LaunchSpec) -> None:
    """Refuse the first number of ``spec`` above its option's bound, with SpecError; placing finds what is too small."""
    from disagg_run.spec.options import OPTIONS

    for option in OPTIONS:
        if option.maximum is None:
            continue
        for path in option.fields:
            value: Any = spec
            for part in path:
                value = getattr(value, part)
            if value is not None and value > option.maximum:
                name = ".".join(path)
                raise SpecError(f"{name} is {value} ({spec.source(name)}), too large: at most {option.maximum:g}")


@cache
def _hints(kind: Any) -> Mapping[str, Any]:
    found = typing.get_type_hints(kind)
    return {field.name: found[field.name] for field in attrs.fields(kind)}


def _wrong(value: Any, hint: Any, path: str) -> Iterator[tuple[str, Any, Any]]:
    """What does not fit below ``value``: its place, itself, and the type that it should have."""
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return
    if origin in (Union, types.UnionType):
        if all(any(_wrong(value, part, path)) for part in parts):
            yield path, value, hint
    elif origin is Literal:
        if value not in parts:
            yield path, value, hint
    elif origin is tuple and isinstance(value, tuple):
        of_items = parts[:1] * len(value) if parts[-1] is ... else parts
        for index, (item, part) in enumerate(zip(value, of_items, strict=False)):
            yield from _wrong(item, part, f"{path}[{index}]")
    elif origin is collections.abc.Mapping and isinstance(value, Mapping):
        for key, item in value.items():
            yield from _wrong(key, parts[0], f"a key of {path}")
            yield from _wrong(item, parts[1], f"{path}.{key}")
    elif not _is(value, origin or hint):
        yield path, value, hint
    elif attrs.has(hint):
        for name, part in _hints(hint).items():
            yield from _wrong(getattr(value, name), part, f"{path}.{name}".lstrip("."))


def _is(value: Any, kind: Any) -> bool:
    if kind is float:
        kind = (int, float)
    # True is an int to Python, and no number to anybody else.
    return isinstance(value, kind) and not (isinstance(value, bool) and kind in (int, (int, float)))


def _shown(hint: Any) -> str:
    if typing.get_origin(hint) in (Union, types.UnionType):
        return " or ".join(_shown(part) for part in typing.get_args(hint))
    if typing.get_origin(hint) is Literal:
        return " or ".join(map(repr, typing.get_args(hint)))
    return "None" if hint is type(None) else str(getattr(hint, "__name__", hint))
