"""What values mean to the program that reads them: ``016`` is 16, ``32K`` may be 32768, the order of JSON keys is none.

Two texts are compared by what the catalogue's kind makes of them. Where nothing is known of a flag, its text counts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from disagg_run.catalogue import OBJECT_KINDS, Catalogue, FlagSpec, folded
from disagg_run.flag_merging import MergedFlag

_SIZE = re.compile(r"(\d+)(\.\d+)?([A-Za-z]+)\Z", re.ASCII)
#: Literals that are taken in place of a value, and leave the flag as if it were not given.
_NOTHING = ("", "None")


def flag_meaning(flags: Sequence[MergedFlag], catalogue: Catalogue | None) -> Any:
    """What one flag of a command means, of which ``flags`` are all occurrences; None = as if it were not given.

    A switch is true or false, several values are a tuple; JSON is compared as data.
    """
    if len(flags) > 1:
        return tuple(flag_meaning([flag], catalogue) for flag in flags)
    if not flags:
        return None
    flag = flags[0]
    if flag.json is not None:
        return json_meaning(flag.json)
    negated = catalogue is not None and catalogue.is_negation(flag.name)
    return words_meaning(flag.values, catalogue.lookup(flag.name) if catalogue else None, negated=negated)


def words_meaning(words: Sequence[str], spec: FlagSpec | None, *, negated: bool = False) -> Any:
    """What the words after a flag mean; ``negated``: it was written as ``--no-x``."""
    if not words:
        return json_meaning(not negated)
    if len(words) > 1:
        return tuple(text_meaning(word, spec) for word in words)
    return text_meaning(words[0], spec)


def default_meaning(spec: FlagSpec | None) -> Any:
    """What a flag means that is not given; None = its parser sets nothing, or it is not known."""
    if spec is None or spec.default is None:
        # A switch without a negation is off; with one, a program may find out for itself.
        off = spec is not None and spec.max_values == 0 and not spec.negations
        return json_meaning(False) if off else None
    if isinstance(spec.default, str):
        return text_meaning(spec.default, spec)
    return json_meaning(spec.default)


def text_meaning(text: str, spec: FlagSpec | None) -> Any:
    """What one word means to the flag that it belongs to: by kind and choices, else the text itself."""
    if spec is None:
        return text
    if text in spec.literals:
        return None if text in _NOTHING else text
    if spec.kind is None:
        # As the catalogue has it: without a kind, the parser may change the text before it compares.
        return folded(text) if spec.choices else text
    try:
        if spec.kind == "int":
            return int(text)
        if spec.kind == "float":
            return float(text)
        if spec.kind == "size":
            size = read_size(text, spec.suffixes)
            return text if size is None else size
        if spec.kind in OBJECT_KINDS and (spec.kind != "json_or_text" or text.lstrip().startswith("{")):
            return json_meaning(json.loads(text))
    except (ValueError, RecursionError):
        pass  # no value of its kind: that is for check_flags to say
    return text


def read_size(text: str, suffixes: Mapping[str, int]) -> int | None:
    """The number that a size means by a parser's ``suffixes``; None = its parser takes no such text.

    Parts of a decimal multiple are taken (``25.6k``), of a binary one are not: so do all parsers that are known.
    """
    text = text.strip()
    found = _SIZE.match(text)
    if found is None:
        try:
            return int(text)
        except ValueError:
            return None
    factor = suffixes.get(found[3])
    if factor is None or (found[2] and factor % 10):
        return None
    return int(float(found[1] + found[2]) * factor) if found[2] else int(found[1]) * factor


def json_meaning(value: Any) -> Any:
    """JSON data that compares as JSON does: ``true`` is not 1, 1 is 1.0, keys have no order."""
    if isinstance(value, bool):
        return "true" if value else "false", bool
    if isinstance(value, Mapping):
        return {str(key): json_meaning(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return tuple(map(json_meaning, value))
    return value


def says(given: Any, meant: Any) -> bool:
    """Whether a value that others gave says what the plan means by ``meant``, a value of a known type.

    Texts are read as such a type: ``"08"`` says 8, ``"True"`` says true.
    """
    if given is None or meant is None:
        return given is meant
    if json_meaning(given) == json_meaning(meant) or str(given) == str(meant):
        return True
    if not isinstance(given, str):
        return False
    if isinstance(meant, bool):
        return given.lower() == str(meant).lower()
    if isinstance(meant, (int, float)):
        try:
            return type(meant)(given) == meant
        except ValueError:
            return False
    return False
