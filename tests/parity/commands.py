"""Commands as flags with values, read without the code under test: by the words' shape and a catalogue's names."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

_FLAG = re.compile(r"--?[A-Za-z]")


@attrs.frozen
class Names:
    """Every spelling of a program's flags, from its catalogue file."""

    #: Spelling -> (the flag's first name, whether it is the negation).
    spellings: Mapping[str, tuple[str, bool]]
    repeatable: frozenset[str]


def read_names(catalogue: Path | None) -> Names:
    """The names in a catalogue file; without one every spelling stands for itself."""
    spellings: dict[str, tuple[str, bool]] = {}
    repeatable = set()
    for flag in json.loads(catalogue.read_text(encoding="utf-8"))["flags"] if catalogue else ():
        if not flag["names"]:  # a positional argument
            continue
        first = flag["names"][0]
        for name in (*flag["names"], *flag.get("aliases", ())):
            spellings[name] = (first, False)
            if flag.get("negatable"):
                spellings["--no-" + name.removeprefix("--")] = (first, True)
        if flag.get("repeatable"):
            repeatable.add(first)
    return Names(spellings, frozenset(repeatable))


def read_command(argv: Sequence[str], names: Names) -> dict[str, Any]:
    """A command as items that can be compared: ``program``, ``--flag``, and ``--flag key.of.json`` for JSON objects.

    A repeated flag counts once with its last value, unless its parser lets it repeat; lists in JSON are values.
    """
    words = [part for word in argv for part in _split(word)]
    start = next((index for index, word in enumerate(words) if _FLAG.match(word)), len(words))
    items: dict[str, Any] = {"program": tuple(words[:start])}
    for name, values in _occurrences(words[start:]):
        first, negated = names.spellings.get(name, (name, False))
        value = _value(values, negated)
        if first in names.repeatable:
            items[first] = (*items.get(first, ()), value)
        elif isinstance(value, dict):
            items |= {f"{first} {key}": leaf for key, leaf in _leaves(value)}
        else:
            items[first] = value
    return items


def _split(word: str) -> Iterable[str]:
    if re.match(r"--[A-Za-z][\w.-]*=", word):
        return word.split("=", 1)
    return (word,)


def _occurrences(words: Iterable[str]) -> Iterable[tuple[str, list[str]]]:
    found: list[tuple[str, list[str]]] = []
    for word in words:
        if _FLAG.match(word):
            found.append((word, []))
        else:
            found[-1][1].append(word)
    return found


def _value(values: list[str], negated: bool) -> Any:
    if not values:
        return not negated
    if len(values) == 1 and values[0][:1] in ("{", "["):
        try:
            return json.loads(values[0])
        except ValueError:
            return values[0]
    return values[0] if len(values) == 1 else tuple(values)


def _leaves(value: Mapping[str, Any], above: str = "") -> Iterable[tuple[str, Any]]:
    for key, item in value.items():
        if isinstance(item, dict):
            yield from _leaves(item, f"{above}{key}.")
        else:
            yield above + key, item
