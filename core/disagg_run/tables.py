"""Typed model tables: YAML package data of an engine plugin, read into ``ModelRow`` records that know their lines.

A table has two keys::

    shared:                      # optional: named blocks that rows extend; they are no rows themselves
      toy-family: {batch: 16, env: {TOY_CACHE: 1}}
    models:
      - name: Toy-7B
        extends: toy-family      # or a list of blocks, a later one wins; blocks may extend blocks
        versions: ">=1.2"        # engine versions, a PEP 440 set; left out = all
        tp: {prefill: 4, decode: 8}
        batch: 32                # the engine's own fields, typed by its attrs class

Mappings of a row and of the blocks it extends are merged key by key, all else is replaced, and ``null`` takes a key out
again. The value of a text field is the text as written, with or without quotes. YAML anchors work too, but ``extends``
merges at every depth.

This is not cattrs: a table lies on the way of every ``plan``, that import alone takes 30 to 90 ms, and its errors know
no lines.
"""

from __future__ import annotations

import collections.abc
import functools
import types
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import attrs

from disagg_run.declarations import ModelRow
from disagg_run.errors import SpecError
from disagg_run.input_files import read_text
from disagg_run.near_miss import did_you_mean
from disagg_run.spec.model import Role, frozen_map
from disagg_run.yamlfile import Path as Keys
from disagg_run.yamlfile import YamlDocument, read_yaml

_SCALARS: dict[type, str] = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}


def read_model_table(path: Path, body_type: type[Any]) -> tuple[ModelRow, ...]:
    """Read the model table at ``path``; each row's ``body`` is a ``body_type``, an attrs class.

    Its fields may be text, numbers, booleans, ``Literal``, attrs classes, ``tuple[T, ...]``, ``Mapping[K, T]`` and
    ``Any`` (plain data), each also ``| None``. A row's ``places`` has ``file:line`` for every dotted path of it.

    Raises SpecError with ``file:line`` for broken YAML, unknown, missing or doubled keys, values of a wrong type,
    unknown blocks, and blocks that extend each other in a circle.
    """
    document = read_yaml(read_text(path, "model table"), path.name)
    top = _mapping(document, document.value, ())
    for key in top:
        if key not in ("models", "shared"):
            raise _unknown(f"key {key!r}", document.place((key,)), key, ("models", "shared"))
    shared = _mapping(document, top.get("shared") or {}, ("shared",))
    models = top.get("models")
    if not isinstance(models, list) or not models:
        raise SpecError(f"{document.place(('models',))}: 'models' must be a list of rows")
    rows: dict[tuple[str, str], ModelRow] = {}
    for index, data in enumerate(models):
        layers = _Layers(document, shared)
        layers.lay(data, ("models", index))
        row = _row(layers, body_type, ("models", index))
        known = rows.setdefault((row.name, row.versions), row)
        if known is not row:
            raise SpecError(
                f"{row.places['']}: the model {row.name!r} stands already at {known.places['']}",
                remedy="give the two rows different versions",
            )
    return tuple(rows.values())


def _row(layers: _Layers, body_type: type[Any], keys: Keys) -> ModelRow:
    document, value = layers.document, layers.value
    fields = {field.name for field in attrs.fields(body_type)}
    for key in value:
        if key not in ("name", "versions", "tp") and key not in fields:
            raise _unknown(f"key {key!r}", layers.place((key,)), key, ("name", "versions", "tp", "extends", *fields))
    if "name" not in value:
        raise SpecError(f"{document.place(keys)}: this row has no 'name'")
    tp = _build(layers, Mapping[Role, int], value.get("tp", {}), ("tp",))
    for role, size in tp.items():
        if size < 1:
            raise SpecError(f"{layers.place(('tp', role))}: 'tp.{role}' is {size}, but a worker has at least one GPU")
    body = {key: item for key, item in value.items() if key in fields}
    return ModelRow(
        name=_build(layers, str, value["name"], ("name",)),
        versions=_build(layers, str, value["versions"], ("versions",)) if "versions" in value else "",
        tp=tp,
        body=_build(layers, body_type, body, ()),
        places={"": document.place(keys), **{".".join(path): document.place(at) for path, at in layers.origin.items()}},
    )


# --- a row over the blocks that it extends -----------------------------------------------------------------------


class _Layers:
    """A row while its blocks and its own keys are laid over each other."""

    def __init__(self, document: YamlDocument, shared: Mapping[str, Any]) -> None:
        self.document = document
        self.shared = shared
        self.value: dict[str, Any] = {}
        #: Path below the row -> where that key stands in the document.
        self.origin: dict[tuple[str, ...], Keys] = {}

    def lay(self, data: Any, keys: Keys, above: tuple[str, ...] = ()) -> None:
        """Lay the mapping at ``keys`` over what is there, after the blocks that it extends."""
        mapping = _mapping(self.document, data, keys)
        asked = mapping.get("extends") or ()
        place = self.document.place((*keys, "extends"))
        for block in asked if isinstance(asked, (list, tuple)) else (asked,):
            if not isinstance(block, str):
                raise SpecError(f"{place}: 'extends' names shared blocks, not {block!r}")
            if block not in self.shared:
                raise _unknown(f"shared block {block!r}", place, block, self.shared)
            if block in above:
                raise SpecError(f"{place}: shared blocks extend each other in a circle: {' -> '.join((*above, block))}")
            self.lay(self.shared[block], ("shared", block), (*above, block))
        self._merge(self.value, {key: item for key, item in mapping.items() if key != "extends"}, keys, ())

    def _merge(self, target: dict[str, Any], mapping: Mapping[str, Any], keys: Keys, path: tuple[str, ...]) -> None:
        for key, item in mapping.items():
            here = (*path, key)
            both = isinstance(item, dict) and isinstance(target.get(key), dict)
            if not both and target.pop(key, None) is not None:
                self.origin = {at: place for at, place in self.origin.items() if at[: len(here)] != here}
            if item is None:
                continue
            self.origin[here] = (*keys, key)
            if isinstance(item, dict):
                self._merge(target.setdefault(key, {}), item, (*keys, key), here)
            else:
                target[key] = item

    def at(self, path: Keys) -> Keys:
        """The path in the document of a path below the row."""
        for end in range(len(path), 0, -1):
            origin = self.origin.get(path[:end])  # type: ignore[arg-type]
            if origin is not None:
                return (*origin, *path[end:])
        return ()

    def place(self, path: Keys) -> str:
        """``file:line`` of a path below the row."""
        return self.document.place(self.at(path))


def _mapping(document: YamlDocument, value: Any, keys: Keys) -> dict[str, Any]:
    if isinstance(value, dict):
        return value
    what = ".".join(map(str, keys)) or "the table"
    raise SpecError(f"{document.place(keys)}: {what} must be a mapping, not {value!r}")


def _unknown(what: str, place: str, word: object, known: Iterable[str]) -> SpecError:
    names = sorted(known)
    remedy = did_you_mean(str(word), names, cutoff=0.5) or f"known are {', '.join(names) or 'none'}"
    return SpecError(f"{place}: unknown {what}", remedy=remedy)


# --- plain data to typed records ---------------------------------------------------------------------------------


def _build(layers: _Layers, kind: Any, value: Any, path: Keys) -> Any:
    """``value`` at ``path`` of the row as a ``kind``."""
    if kind in _SCALARS:
        return _scalar(layers, kind, value, path)
    if kind is Any:
        return value
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        inner = [each for each in arguments if each is not type(None)]
        if len(inner) == 1:
            return None if value is None else _build(layers, inner[0], value, path)
    elif origin is Literal:
        return _choice(layers, arguments, value, path)
    elif origin is tuple and arguments[1:] == (...,):
        if not isinstance(value, list):
            raise _wrong(layers, path, "a list", value)
        return tuple(_build(layers, arguments[0], item, (*path, index)) for index, item in enumerate(value))
    elif origin is collections.abc.Mapping:
        if not isinstance(value, dict):
            raise _wrong(layers, path, "a mapping", value)
        if get_origin(arguments[0]) is Literal:
            for key in value:
                _choice(layers, get_args(arguments[0]), key, (*path, key), what="key")
        return frozen_map({key: _build(layers, arguments[1], item, (*path, key)) for key, item in value.items()})
    elif attrs.has(kind):
        return _record(layers, kind, value, path)
    raise TypeError(f"a model table cannot hold fields of type {kind!r}")


def _scalar(layers: _Layers, kind: type, value: Any, path: Keys) -> Any:
    if kind is str and isinstance(value, (str, int, float)):
        written = layers.document.text(layers.at(path))
        return str(value) if written is None else written
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if (kind is bool and isinstance(value, bool)) or (kind is int and number and isinstance(value, int)):
        return value
    if kind is float and number:
        return float(value)
    raise _wrong(layers, path, _SCALARS[kind], value)


def _choice(layers: _Layers, choices: tuple[Any, ...], value: Any, path: Keys, what: str = "value") -> Any:
    if value in choices:
        return value
    where = ".".join(map(str, path[:-1] if what == "key" else path))
    raise _unknown(f"{what} {value!r} of {where!r}", layers.place(path), value, map(str, choices))


def _record(layers: _Layers, kind: Any, value: Any, path: Keys) -> Any:
    if not isinstance(value, dict):
        raise _wrong(layers, path, "a mapping", value)
    hints = _hints(kind)
    for key in value:
        if key not in hints:
            raise _unknown(f"key {key!r} of {'.'.join(map(str, path))!r}", layers.place((*path, key)), key, hints)
    for field in attrs.fields(kind):
        if field.default is attrs.NOTHING and field.name not in value:
            missing = ".".join(map(str, (*path, field.name)))
            raise SpecError(f"{layers.place(path or ('name',))}: {missing!r} is missing")
    data = {key: _build(layers, hints[key], item, (*path, key)) for key, item in value.items()}
    try:
        return kind(**data)
    except (ValueError, TypeError) as error:  # a validator of the engine's record
        raise SpecError(f"{layers.place(path or ('name',))}: {error}") from error


@functools.cache
def _hints(kind: Any) -> Mapping[str, Any]:
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in attrs.fields(kind)}


def _wrong(layers: _Layers, path: Keys, wanted: str, value: Any) -> SpecError:
    where = ".".join(map(str, path))
    return SpecError(f"{layers.place(path)}: {where!r} must be {wanted}, not {value!r}")
