"""Text into values, in one place for command line, run file and variables.

All functions here raise BadValueError for a text that is no value of their type.
"""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from disagg_run.addresses import normal_address, numeric_address
from disagg_run.declarations import Setting
from disagg_run.mounts import read_mount
from disagg_run.spec.model import Node
from disagg_run.spec.option import Form, Option

_INT = re.compile(r"[+-]?[0-9]+")
#: Digits of the longest number that is read; nothing that is counted here has more.
_MOST_DIGITS = 18
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
_DEVICE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]*")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_BOOL = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}


class BadValueError(ValueError):
    """A text that is no value of its type; the caller adds the place."""


def option_value(option: Option, text: str) -> Any:
    """The value of a plain option (no args, names, env, settings or simulation) from its text."""
    reader = names if option.type == "list" else _READERS.get(option.type, line_of_text)
    value = reader(text)
    for one in (value if isinstance(value, tuple) else (value,)) if option.form else ():
        check_form(option.form, one)
    if option.choices and value not in option.choices:
        raise BadValueError(f"{text!r} is not one of {', '.join(option.choices)}")
    for one in value if option.type == "sizes" else (value,):
        check_bounds(one, option.minimum, option.maximum)
    return value


def setting_value(setting: Setting, text: str) -> Any:
    """The value of a plugin's setting from text."""
    value = check_choices(setting, _READERS.get(setting.type, no_nul)(text))
    if setting.type in ("int", "float"):
        check_bounds(value, setting.minimum, setting.maximum)
    return value


def setting_data(setting: Setting, data: Any, items: tuple[str, ...] | None) -> Any:
    """The value of a plugin's setting from a list or mapping of a run file; ``items``: a plain list's texts."""
    if setting.type == "list" and items is not None:
        return check_choices(setting, items)
    if setting.type == "json":
        try:
            json.dumps(data, allow_nan=False)
        except ValueError:
            raise BadValueError("infinity and not-a-number are no JSON") from None
        return check_choices(setting, data)
    raise BadValueError(
        f"a {'list' if isinstance(data, list) else 'mapping'} stands where one {setting.type} is expected"
    )


def check_choices(setting: Setting, value: Any) -> Any:
    """``value``, if it is one that the setting allows."""
    allowed = setting.choices
    for one in value if setting.type == "list" else (value,):
        if allowed and one not in allowed:
            raise BadValueError(f"{one!r} is not one of {', '.join(map(str, allowed))}")
    return value


def check_form(form: Form, text: str) -> None:
    """Refuse a text that does not have the form."""
    if form == "image" and (re.search(r"\s", text) or text.startswith("-")):
        raise BadValueError(f"{text!r} is no image: a reference has no blanks, and no dash in front")
    if form == "device" and not _DEVICE.fullmatch(text):
        raise BadValueError(f"{text!r} is no name of a device: letters, digits and . _ : -")
    if form == "mount":
        try:
            read_mount(text)
        except ValueError as error:
            raise BadValueError(str(error)) from None
    if form == "path" and text.startswith("~"):
        raise BadValueError(f"{text!r} begins with ~, which nothing expands: write the path in full")
    if form == "secret" and not _VARIABLE.fullmatch(text):
        # What stands behind = may be the secret itself: it is not shown.
        shown = repr(text.partition("=")[0]) + (" with a value" if "=" in text else "")
        raise BadValueError(f"{shown} is no name of a variable: give the name alone, and the value in the environment")
    if form == "version":
        from packaging.version import InvalidVersion, Version  # not every launch names one

        try:
            Version(text)
        except InvalidVersion:
            raise BadValueError(f"{text!r} is no version: write it like 0.5.12 or 0.5.12.post1") from None


def whole_number(text: str) -> int:
    """The whole number that a text is; BadValueError for anything else."""
    if not _INT.fullmatch(text.strip()):
        raise BadValueError(f"{text!r} is no whole number")
    if len(text.strip()) > _MOST_DIGITS:
        raise BadValueError(f"{text.strip()[:_MOST_DIGITS]}… is too large: it has {len(text.strip())} characters")
    return int(text)


def number(text: str) -> float:
    """The finite number that a text is; BadValueError for anything else."""
    try:
        value = float(text) if "_" not in text else math.nan
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise BadValueError(f"{text!r} is no number")
    return value


def rate(text: str) -> str:
    """Requests a second as the clients take it: ``inf`` or a number above 0, as typed."""
    if text.strip() == "inf":
        return "inf"
    try:
        above = number(text) > 0
    except BadValueError:
        above = False
    if not above:
        raise BadValueError(f"{text!r} is neither a number above 0 nor inf")
    return text.strip()


def check_bounds(value: Any, minimum: float | None, maximum: float | None) -> None:
    """Refuse a number below ``minimum`` or above ``maximum`` with BadValueError; None = no bound."""
    if minimum is not None and value < minimum:
        raise BadValueError(f"{value} is too small: at least {minimum:g}")
    if maximum is not None and value > maximum:
        raise BadValueError(f"{value} is too large: at most {maximum:g}")


def switch(text: str) -> bool:
    """What a text such as ``true``, ``0`` or ``yes`` means; BadValueError for anything else."""
    value = _BOOL.get(text.strip().lower())
    if value is None:
        raise BadValueError(f"{text!r} is neither true nor false")
    return value


def no_nul(text: str) -> str:
    """The text itself; BadValueError where it holds a NUL character."""
    if "\0" in text:
        raise BadValueError(f"{text!r} holds a NUL character, which no program can be given")
    return text


def line_of_text(text: str) -> str:
    """A name, path or image: one line, not empty."""
    if not text.strip():
        raise BadValueError("the text is empty")
    if any(ord(character) < 32 or ord(character) == 127 for character in text):
        raise BadValueError(f"{text!r} holds a control character")
    return text


def words(text: str) -> tuple[str, ...]:
    """Comma or blank separated words."""
    return tuple(no_nul(text).replace(",", " ").split())


def names(text: str) -> tuple[str, ...]:
    """Names with commas between them, each once; a gap is a slip, or a variable that was empty."""
    found = tuple(part.strip() for part in no_nul(text).split(","))
    if not any(found):
        raise BadValueError("the list is empty")
    if "" in found:
        raise BadValueError(f"{text!r} has a comma with no name beside it")
    twice = next((name for name in found if found.count(name) > 1), None)
    if twice is not None:
        raise BadValueError(f"{twice!r} stands twice in {text!r}")
    return found


def sizes(text: str) -> tuple[int, ...]:
    """``8x16x32``, or with commas or blanks."""
    parts = re.split(r"\s*[x,]\s*|\s+", text.strip())
    if not all(_INT.fullmatch(part) for part in parts):
        raise BadValueError(f"{text!r} is no list of whole numbers such as 8x16x32")
    return tuple(map(whole_number, parts))


def shell_words(text: str) -> tuple[str, ...]:
    """Words of a command line, split by the shell's rules; nothing is expanded."""
    try:
        return tuple(shlex.split(no_nul(text)))
    except ValueError as error:
        raise BadValueError(f"{text!r} cannot be split into words: {str(error).lower()}") from None


def json_value(text: str) -> Any:
    """What a JSON text holds; BadValueError where it is none, or has NaN or an infinity."""
    try:
        return json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise BadValueError(f"{text!r} is no JSON: {error}") from None


def _no_constant(text: str) -> Any:
    raise ValueError(f"{text} is not allowed")


def variable_name(text: str) -> str:
    """The name itself; BadValueError where no variable can be called that."""
    if not _VARIABLE.fullmatch(text):
        raise BadValueError(f"{text!r} is no name of a variable: letters, digits and underscores")
    return text


def node_list(text: str) -> tuple[Node, ...]:
    """``10.0.0.1,10.0.0.2``, ``n0=10.0.0.1,n1=fd00::1``, or host names; in rank order."""
    return unique_nodes([node(part) for part in text.split(",")])


def unique_nodes(nodes: Sequence[Node]) -> tuple[Node, ...]:
    """The nodes, if each address and each name stands once."""
    if not nodes:
        raise BadValueError("the list of nodes is empty")
    for kind in ("address", "name"):
        seen: set[str] = set()
        for one in nodes:
            value = getattr(one, kind)
            if value and value.lower() in seen:
                raise BadValueError(f"the node {kind} {value!r} stands twice: one node has one rank")
            seen.add(value.lower())
    return tuple(nodes)


def node(text: str) -> Node:
    """One node: ``name=address``, or an address or host name alone."""
    name, equals, address = text.strip().rpartition("=")
    if equals and not _HOST.fullmatch(name):
        raise BadValueError(f"{text.strip()!r} is no node: {name!r} is no host name")
    return make_node(name, address)


def make_node(name: str, address: str) -> Node:
    """A node of a host name ("" = none) and an address, which may be a host name, too."""
    try:
        found = normal_address(address)
    except ValueError as error:
        raise BadValueError(str(error)) from None
    if numeric_address(address) is None:
        if not _HOST.fullmatch(address) or re.fullmatch(r"[0-9.]+", address):
            hint = ": write it without a port" if re.fullmatch(r"[^:]+:[0-9]+|\[.*\]:[0-9]+", address) else ""
            raise BadValueError(f"{address!r} is neither an address nor a host name{hint}")
        return Node(name=name or address, address=address)
    return Node(name=name, address=found)


_READERS: Mapping[str, Callable[[str], Any]] = {
    "int": whole_number,
    "float": number,
    "bool": switch,
    "list": words,
    "json": json_value,
    "sizes": sizes,
    "rate": rate,
    "nodes": node_list,
}
