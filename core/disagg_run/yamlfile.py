"""YAML files as plain data in which every value knows its line; used for run files and model tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

import attrs
import yaml

from disagg_run.errors import SpecError
from disagg_run.spec.model import frozen_map

Path = tuple[str | int, ...]

#: A file nested deeper than this is a mistake (or an alias that contains itself).
MAX_DEPTH = 40
#: Values of one document once its aliases are written out: far above any table, far below what fills the memory.
MAX_NODES = 100_000

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TAG = "tag:yaml.org,2002:"
_SCALARS = {_TAG + name for name in ("str", "null", "bool", "int", "float", "timestamp", "value")}
_MERGE = _TAG + "merge"


@attrs.frozen(kw_only=True)
class YamlDocument:
    """One YAML document: its data, and where each part of it stands."""

    #: Name for messages, as the caller gave it: ``models.yaml``.
    name: str
    #: Dicts with text keys, lists, text, numbers, booleans, None; an empty document is None.
    value: Any
    #: Line (from 1) of each key of a mapping and each item of a list.
    lines: Mapping[Path, int] = attrs.field(converter=frozen_map, repr=False)
    #: Scalars as they are written, without quotes: ``0.10`` where the value is 0.1.
    texts: Mapping[Path, str] = attrs.field(converter=frozen_map, repr=False)

    def line(self, path: Path) -> int:
        """The line of ``path``, or of the nearest part above it that exists."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 1)

    def place(self, path: str | Path = ()) -> str:
        """``name:line`` of a path, given as a tuple or as text with dots: ``prefill.tp``, ``models.0.name``."""
        if isinstance(path, tuple):
            return f"{self.name}:{self.line(path)}"
        while path and path not in self._dotted:
            path = path.rpartition(".")[0]
        return f"{self.name}:{self._dotted.get(path, 1)}"

    def text(self, path: Path) -> str | None:
        """The scalar at ``path`` as written in the file; None for mappings, lists and what is not there."""
        return self.texts.get(path)

    @cached_property
    def _dotted(self) -> dict[str, int]:
        return {".".join(map(str, path)): line for path, line in self.lines.items()}


def read_yaml(text: str, name: str) -> YamlDocument:
    """Read one YAML document strictly.

    ``name`` stands for the file in messages (its base name, as a rule). Times and ``1:30`` numbers stay text. Raises
    ``SpecError``, ``name:line: …``, for broken YAML, a key that stands twice or is no text, a tag beyond the usual
    ones, and aliases that nest without end.
    """
    reader = _Reader(name)
    try:
        loader = _LOADER(text)
        try:
            root = loader.get_single_node()
            value = None if root is None else reader.read(loader, root, (), 0)
        finally:
            loader.dispose()
    except yaml.YAMLError as error:
        line, problem = _explain(error, text)
        raise SpecError(f"{name}:{line}: not valid YAML: {problem}") from error
    except UnicodeEncodeError as error:
        raise SpecError(f"{name}:{_line_at(text, error.start)}: not valid YAML: a character that is no text") from error
    except RecursionError:  # only the pure-Python parser, where PyYAML was built without libyaml
        raise SpecError(f"{name}: nested deeper than {MAX_DEPTH} levels") from None
    return YamlDocument(name=name, value=value, lines=reader.lines, texts=reader.texts)


def _explain(error: yaml.YAMLError, text: str) -> tuple[int, str]:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    if mark is not None:
        problem = getattr(error, "problem", None) or getattr(error, "context", None) or "broken"
        return mark.line + 1, " ".join(str(problem).split())
    position = getattr(error, "position", None)
    if isinstance(position, int):
        return _line_at(text, position), f"character {text[position : position + 1]!r} is not allowed"
    return 1, " ".join(str(error).split())


def _line_at(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1


class _Reader:
    """Turns nodes into data and notes the lines on the way."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.lines: dict[Path, int] = {}
        self.texts: dict[Path, str] = {}

    def read(self, loader: Any, node: yaml.Node, path: Path, depth: int) -> Any:
        self.lines.setdefault(path, _line(node))
        if depth > MAX_DEPTH:
            raise self._error(node, f"nested deeper than {MAX_DEPTH} levels")
        if len(self.lines) > MAX_NODES:
            raise self._error(node, f"more than {MAX_NODES} values once its aliases are written out")
        if isinstance(node, yaml.MappingNode) and node.tag == _TAG + "map":
            data = {}
            for key, key_node, item in self._pairs(node, depth):
                inner = (*path, key)
                self.lines[inner] = _line(key_node)
                data[key] = self.read(loader, item, inner, depth + 1)
            return data
        if isinstance(node, yaml.SequenceNode) and node.tag == _TAG + "seq":
            return [self.read(loader, item, (*path, n), depth + 1) for n, item in enumerate(node.value)]
        if isinstance(node, yaml.ScalarNode) and node.tag in _SCALARS:
            self.texts[path] = node.value
            return self._scalar(loader, node)
        raise self._error(node, f"the tag {node.tag.replace(_TAG, '!!')!r} is not known here: leave it out")

    def _scalar(self, loader: Any, node: yaml.ScalarNode) -> Any:
        kind = node.tag.removeprefix(_TAG)
        if kind in ("str", "timestamp", "value") or (kind in ("int", "float") and ":" in node.value):
            return node.value
        try:
            return loader.construct_object(node)
        except (ValueError, KeyError, IndexError):
            raise self._error(node, f"{node.value[:40]!r} is no {kind}") from None

    def _pairs(self, node: yaml.MappingNode, depth: int) -> Iterator[tuple[str, yaml.Node, yaml.Node]]:
        """Keys, their nodes and their values; what ``<<`` brings in comes last and replaces nothing."""
        seen: dict[str, int] = {}
        merged: list[yaml.Node] = []
        for key_node, item in node.value:
            if key_node.tag == _MERGE:
                merged.extend(item.value if isinstance(item, yaml.SequenceNode) else [item])
                continue
            key = self._key(key_node)
            if key in seen:
                raise self._error(
                    key_node, f"the key {key!r} stands already at {self.name}:{seen[key]}: keep one of the two"
                )
            seen[key] = _line(key_node)
            yield key, key_node, item
        for item in merged:
            if not isinstance(item, yaml.MappingNode):
                raise self._error(item, "'<<' takes a mapping")
            if depth > MAX_DEPTH:
                raise self._error(item, f"nested deeper than {MAX_DEPTH} levels")
            for key, key_node, value in self._pairs(item, depth + 1):
                if key not in seen:
                    seen[key] = _line(key_node)
                    yield key, key_node, value

    def _key(self, node: yaml.Node) -> str:
        if isinstance(node, yaml.ScalarNode) and node.tag == _TAG + "str":
            return str(node.value)
        if isinstance(node, yaml.ScalarNode):
            raise self._error(node, f"the key {node.value!r} is no text: put it in quotes")
        raise self._error(node, "a key must be text, not a list or mapping")

    def _error(self, node: yaml.Node, problem: str) -> SpecError:
        return SpecError(f"{self.name}:{_line(node)}: {problem}")


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1
