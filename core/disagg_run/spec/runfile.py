"""The run file: YAML whose keys mirror the options, read strictly and with the line of every value."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from disagg_run.near_miss import did_you_mean
from disagg_run.sources import Layer, Source
from disagg_run.spec.layers import (
    AnyAssignment,
    Place,
    SettingAssignment,
    args_at,
    assign,
    assign_simulation,
    assign_value,
    env_at,
)
from disagg_run.spec.model import Node
from disagg_run.spec.option import Option
from disagg_run.spec.options import OPTIONS
from disagg_run.spec.values import BadValueError, make_node, no_nul, node, shell_words, unique_nodes
from disagg_run.yamlfile import Path, YamlDocument, read_yaml

#: Keys of the run file: an option, or the keys below.
Tree = dict[str, "Option | Tree"]


@cache
def key_tree() -> Tree:
    """All keys that a run file may have, except the free names below ``processes``."""
    tree: Tree = {}
    for option in OPTIONS:
        below = tree
        for part in option.key[:-1]:
            inner = below.setdefault(part, {})
            assert isinstance(inner, dict)
            below = inner
        below[option.key[-1]] = option
    return tree


def run_file(text: str, name: str) -> tuple[AnyAssignment, ...]:
    """What a run file says, broad keys before narrow ones; ``name`` is its base name, for sources and messages."""
    document = read_yaml(text, name)
    reader = _RunFile(document)
    if document.value is None:
        raise reader.place((), "").error("the run file is empty")
    found = sorted(reader.mapping(document.value, key_tree(), ()), key=lambda item: -item[0])
    return tuple(assignment for _, assignments in found for assignment in assignments)


class _RunFile:
    def __init__(self, document: YamlDocument) -> None:
        self.document = document

    def place(self, path: Path, key: str) -> Place:
        where = self.document.place(path)
        return Place(source=Source(layer=Layer.RUN_FILE, where=where), text=f"{where}: {key}" if key else where)

    def at(self, path: Path) -> Place:
        return self.place(path, _dotted(path))

    def mapping(self, data: Any, tree: Tree, path: Path) -> Iterator[tuple[int, list[AnyAssignment]]]:
        """The assignments below ``path``, each option's with the number of fields that it sets."""
        for key, inner, value in self._keys(data, path):
            below = tree.get(key)
            if below is None and not path and key == "processes":
                yield 0, list(self._processes(value, inner))
            elif below is None:
                raise self._unknown(str(inner[-1]), [*tree, "processes"] if not path else list(tree), path)
            elif isinstance(below, dict):
                yield from self.mapping(value, below, inner)
            else:
                yield len(below.fields), list(self._option(below, value, inner))

    def _keys(self, data: Any, path: Path) -> Iterator[tuple[str, Path, Any]]:
        """Keys of a mapping in their usual spelling, with path and value; ``_`` and ``-`` are one."""
        if not isinstance(data, dict):
            raise self.at(path).error(f"{_kind(data)} stands where keys with values are expected")
        seen: dict[str, Path] = {}
        for written, value in data.items():
            key, inner = written.replace("_", "-"), (*path, written)
            if key in seen:
                first = self.document.place(seen[key])
                raise self.at(inner).error(
                    f"the key stands already at {first} as {seen[key][-1]!r}: keep one of the two"
                )
            seen[key] = inner
            yield key, inner, value

    def _unknown(self, key: str, known: list[str], path: Path) -> Exception:
        written = key.replace("_", "-").lower()
        option = next((each for each in OPTIONS if f"--{written}" in (each.flag, *each.aliases)), None)
        elsewhere = [option.key_text for option in OPTIONS if option.key[-1] == written]
        if option is not None and not path and option.key_text != written:
            remedy = f"the option {option.flag} is {option.key_text} in a run file"
        else:
            remedy = did_you_mean(written, known)
        if not remedy and elsewhere:
            remedy = f"it belongs at {' or '.join(elsewhere)}"
        remedy = remedy or f"known keys are {', '.join(sorted(known))}"
        where = f" below {_dotted(path)!r}" if path else ""
        return self.place((*path, key), "").error(f"unknown key {key!r}{where}", remedy=remedy)

    def _option(self, option: Option, data: Any, path: Path) -> Iterator[AnyAssignment]:
        place = self.at(path)
        if data is None:
            raise place.error("there is no value", remedy="write one, or take the line out")
        if option.type == "args":
            yield args_at(option.fields[0], self._words(data, path), place)
        elif option.type == "env":
            for name, inner, value in self._named(data, path):
                yield env_at(option.fields[0], name, self._text(value, inner), self.at(inner))
        elif option.type == "settings":
            for name, inner, value in self._named(data, path):
                yield self._setting(option, name, value, inner)
        elif option.type == "simulation" and isinstance(data, dict):
            for name, inner, value in self._named(data, path):
                yield assign_simulation(option, name, self._words(value, inner), self.at(inner))
        elif option.type == "nodes" and isinstance(data, list):
            yield from assign_value(option, self._nodes(data, path), ",".join(map(str, data)), place)
        elif option.type in ("list", "sizes", "names") and isinstance(data, list):
            yield from assign(option, ",".join(self._texts(data, path)), place)
        else:
            yield from assign(option, self._text(data, path), place)

    def _processes(self, data: Any, path: Path) -> Iterator[AnyAssignment]:
        for name, inner, value in self._named(data, path):
            for key, below, part in self._keys(value, inner):
                if key == "args":
                    yield args_at(("processes", name, "args"), self._words(part, below), self.at(below))
                elif key == "env":
                    for variable, deepest, text in self._named(part, below):
                        yield env_at(("processes", name, "env"), variable, self._text(text, deepest), self.at(deepest))
                else:
                    raise self._unknown(str(below[-1]), ["args", "env"], inner)

    def _named(self, data: Any, path: Path) -> Iterator[tuple[str, Path, Any]]:
        """Names that the user chooses, with path and value."""
        if not isinstance(data, dict):
            raise self.at(path).error(f"{_kind(data)} stands where names with values are expected")
        for name, value in data.items():
            yield name, (*path, name), value

    def _setting(self, option: Option, name: str, data: Any, path: Path) -> SettingAssignment:
        if data is None:
            raise self.at(path).error("there is no value", remedy="write one, or take the line out")
        items = None
        if isinstance(data, list) and not any(item is None or isinstance(item, (list, dict)) for item in data):
            items = tuple(self._texts(data, path))
        text = self.document.text(path)
        return SettingAssignment(
            path=option.fields[0],
            name=name.replace("-", "_"),
            text=str(data) if text is None else text,
            data=data if text is None else None,
            items=items,
            place=self.at(path),
        )

    def _text(self, data: Any, path: Path) -> str:
        """A scalar as it is written."""
        text = self.document.text(path)
        if data is None or text is None:
            raise self.at(path).error(f"{_kind(data)} stands where one value is expected")
        return text

    def _texts(self, data: list[Any], path: Path) -> list[str]:
        return [self._text(item, (*path, index)) for index, item in enumerate(data)]

    def _words(self, data: Any, path: Path) -> tuple[str, ...]:
        """Words of a command: a text, split by the shell's rules, or a list of finished words."""
        if isinstance(data, list):
            return tuple(self.at(path).read(no_nul, text) for text in self._texts(data, path))
        words: tuple[str, ...] = self.at(path).read(shell_words, self._text(data, path))
        return words

    def _nodes(self, data: list[Any], path: Path) -> tuple[Node, ...]:
        nodes = []
        for index, item in enumerate(data):
            inner = (*path, index)
            if isinstance(item, dict):
                nodes.append(self._node(item, inner))
            else:
                nodes.append(self.at(inner).read(node, self._text(item, inner)))
        try:
            return unique_nodes(nodes)
        except BadValueError as error:
            raise self.at(path).error(str(error)) from None

    def _node(self, data: Mapping[str, Any], path: Path) -> Node:
        parts = {"name": "", "address": ""}
        for key, inner, value in self._keys(data, path):
            if key not in parts:
                raise self._unknown(key, list(parts), path)
            parts[key] = self._text(value, inner)
        made: Node = self.at(path).read(lambda address: make_node(parts["name"], address), parts["address"])
        return made


def _dotted(path: Path) -> str:
    parts = map(str, path)
    return ".".join(part if part.isprintable() else repr(part) for part in parts)


def _kind(data: Any) -> str:
    if data is None:
        return "nothing"
    return "a list" if isinstance(data, list) else "a mapping" if isinstance(data, dict) else "a single value"
