"""Flags as records: words into flags, flags into words; merging and checking stand beside and are found here too."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import attrs

from disagg_run.catalogue import Catalogue
from disagg_run.errors import FlagError
from disagg_run.flag_checking import check_flags
from disagg_run.flag_claims import json_text
from disagg_run.flag_merging import MergedFlag, merge_flags
from disagg_run.records import Flag
from disagg_run.sources import Source

__all__ = ["MergedFlag", "check_flags", "json_leaf", "merge_flags", "render", "split_words"]

#: What looks like a flag: dashes, a letter (a digit after two dashes), no blank before ``=``.
_FLAG = re.compile(r"(--\w|-[A-Za-z])[^\s=]*(=|\Z)")


def split_words(words: Sequence[str], catalogue: Catalogue | None, source: Source) -> tuple[Flag, ...]:
    """The words of a command line as flags, each with ``source``; nothing is lost, whatever the count of values.

    ``--a=b``, ``-qVALUE`` of a short flag that takes one, and words after a flag up to the next one are its values: how
    many there may be is for ``check_flags`` to say. Words such as ``-1`` are values. Where the catalogue says that a
    flag takes JSON, ``--flag.key.key VALUE`` sets one key (the value is JSON, or else text), and ``--flag.key+ a,b``
    adds to a list.

    Raises FlagError for a word that belongs to no flag.
    """
    flags: list[Flag] = []
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        if not _is_flag(word):
            after = f" after {flags[-1].name}" if flags else ""
            raise FlagError(f"the word {word!r}{after} ({source}) belongs to no flag", remedy="write --flag VALUE")
        name, values = _parted(word, catalogue)
        if not values:
            end = at
            while end < len(words) and not _is_flag(words[end]):
                end += 1
            values, at = tuple(words[at:end]), end
        if "." in name and catalogue is not None:
            spec = catalogue.lookup(name.partition(".")[0])
            if spec is not None and spec.takes_objects:
                _add_leaf(flags, name, values, source)
                continue
        flags.append(Flag(name, values, source=source))
    return tuple(flags)


def _is_flag(word: str) -> bool:
    return _FLAG.match(word) is not None or word == "--"


def _parted(word: str, catalogue: Catalogue | None) -> tuple[str, tuple[str, ...]]:
    """Name and the value that stands in the same word."""
    name, equals, value = word.partition("=")
    if equals:
        return name, (value,)
    if catalogue is not None and not word.startswith("--") and len(word) > 2 and catalogue.lookup(word) is None:
        short = catalogue.lookup(word[:2])
        if short is not None and short.max_values != 0:
            return word[:2], (word[2:],)
    return word, ()


def _add_leaf(flags: list[Flag], name: str, values: tuple[str, ...], source: Source) -> None:
    """Add ``--flag.key VALUE`` as a JSON object of one leaf; list elements join those that came before."""
    base, _, dotted = name.partition(".")
    if len(values) != 1:
        raise FlagError(f"{name} ({source}) takes one value, not {' '.join(values)!r}")
    keys = dotted.removesuffix("+").split(".")
    if not all(keys):
        raise FlagError(f"{name!r} ({source}) has an empty key", remedy=f"write {base}.KEY VALUE")
    value: Any = values[0].split(",") if dotted.endswith("+") else _leaf_value(values[0])
    if dotted.endswith("+"):
        for index, flag in enumerate(flags):
            before = json_leaf(flag.json, keys) if flag.name == base else None
            if isinstance(before, list):
                flags[index] = attrs.evolve(flag, json=_nested(keys, [*before, *value]))
                return
    flags.append(Flag(base, json=_nested(keys, value), source=source))


def _leaf_value(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _nested(keys: Sequence[str], value: Any) -> dict[str, Any]:
    for key in reversed(keys):
        value = {key: value}
    assert isinstance(value, dict)
    return value


def json_leaf(value: Any, keys: Iterable[str]) -> Any:
    """What stands at a path of ``keys`` in JSON data; None = nothing."""
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def render(merged: Iterable[MergedFlag], joined: Collection[str] = ()) -> tuple[str, ...]:
    """The argv words of a command's flags.

    A single value is joined to its flag by ``=`` where the flag is one of ``joined``, or where the value begins with a
    dash, so that no parser takes it for a flag.
    """
    return tuple(word for flag in merged for word in _words(flag, joined))


def _words(flag: MergedFlag, joined: Collection[str]) -> tuple[str, ...]:
    if flag.json is not None:
        return flag.name, json_text(flag.json)
    if len(flag.values) == 1 and (flag.name in joined or flag.values[0].startswith("-")):
        return (f"{flag.name}={flag.values[0]}",)
    return (flag.name, *flag.values)
