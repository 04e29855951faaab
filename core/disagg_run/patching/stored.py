"""Records from the plain data that were kept of them, each value of the type of its field.

Every process that looks at a ledger reads it so, also the one that ends a change: importing cattrs, as readers
of plans do, would take longer than all its work.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping
from functools import cache
from typing import Any, Literal, TypeVar, get_args, get_origin

import attrs

R = TypeVar("R")

_SCALARS = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}


class Misfit(Exception):
    """A value is not what its field takes; the message says where it stands and what is wrong, in one clause."""


def record(kind: type[R], data: object, place: str) -> R:
    """The record of ``kind`` that ``data`` holds; ``place`` names it: ``applied[0].patch``.

    Raises Misfit for keys that are missing or unknown and for values of a wrong type.
    """
    if not isinstance(data, dict):
        raise Misfit(f"{place or 'the document'} is no object")
    hints = _hints(kind)  # type: ignore[arg-type]
    for key in data:
        if key not in hints:
            raise Misfit(f"{_below(place, key)} is an unknown key")
    values = {}
    for field in attrs.fields(kind):  # type: ignore[arg-type]
        if field.name in data:
            values[field.name] = _value(hints[field.name], data[field.name], _below(place, field.name))
        elif field.default is attrs.NOTHING:
            raise Misfit(f"{_below(place, field.name)} is missing")
    return kind(**values)


def _value(kind: Any, data: object, place: str) -> object:
    origin, args = get_origin(kind), get_args(kind)
    if origin is tuple:
        if not isinstance(data, list):
            raise Misfit(f"{place} is no list")
        return [_value(args[0], each, f"{place}[{index}]") for index, each in enumerate(data)]
    if origin is not None and isinstance(origin, type) and issubclass(origin, Mapping):
        if not isinstance(data, dict):
            raise Misfit(f"{place} is no object")
        return {key: _value(args[1], each, f"{place}[{key!r}]") for key, each in data.items()}
    if origin is types.UnionType:
        return None if data is None else _value(args[0], data, place)
    if origin is Literal:
        if data not in args:
            raise Misfit(f"{place} is {data!r}, not {' or '.join(map(repr, args))}")
        return data
    if kind in _SCALARS:
        if type(data) is not kind and not (kind is float and type(data) is int):
            raise Misfit(f"{place} is {data!r}, not {_SCALARS[kind]}")
        return data
    return record(kind, data, place)


def _below(place: str, key: str) -> str:
    return f"{place}.{key}" if place else key


@cache
def _hints(kind: type[Any]) -> dict[str, Any]:
    return typing.get_type_hints(kind)
