"""An argparse parser built from a flag catalogue, for stand-ins.

It reads the catalogue's JSON by itself and shares no code with ``disagg_run.flags``: what the planner writes and what a
stand-in takes are two readings of one file, so a mistake in either shows. Errors look like those of the program that
the catalogue was taken from: argparse's, or clap's for programs written in Rust.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NoReturn

Style = Literal["argparse", "clap"]

_SUFFIX = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_JSON_TYPES = ("json.loads", "loads")
_JSON_OR_TEXT_TYPES = ("parse_dataclass", "union_dict_and_str", "_parse_type")


class StandInParser(argparse.ArgumentParser):
    """A parser that dies as the program it stands for: a message on stderr and exit code 2."""

    def __init__(self, *, prog: str, style: Style) -> None:
        self.style = style
        #: Whether long names are taken as they are; else each ``_`` in them counts as ``-``.
        self.dashes_only = True
        super().__init__(prog=prog, allow_abbrev=style == "argparse", add_help=True)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """argparse's, after each ``_`` in a long name became ``-`` where the program does so."""
        if args is not None and not self.dashes_only:
            args = [_with_dashes(word) for word in args]
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        if self.style == "argparse":
            super().error(message)
        sys.stderr.write(f"error: {_as_clap(message)}\n\n")
        sys.stderr.write(f"Usage: {self.prog} [OPTIONS]\n\nFor more information, try '--help'.\n")
        sys.exit(2)


def _with_dashes(word: str) -> str:
    if not word.startswith("--"):
        return word
    name, equals, value = word.partition("=")
    return name.replace("_", "-") + equals + value


def _as_clap(message: str) -> str:
    """argparse's message in clap's words (seen on clap 4)."""
    found = re.match(r"unrecognized arguments: (\S+)", message)
    if found:
        return f"unexpected argument '{found[1]}' found"
    found = re.match(r"argument (?:\S+/)*(\S+): invalid choice: '(.*)' \(choose from (.*)\)", message, re.DOTALL)
    if found:
        choices = found[3].replace("'", "")
        return f"invalid value '{found[2]}' for '{found[1]} <VALUE>'\n  [possible values: {choices}]"
    found = re.match(r"argument (?:\S+/)*(\S+): invalid (\S+) value: '(.*)'", message, re.DOTALL)
    if found:
        kind = "invalid digit found in string" if found[2] == "int" else f"invalid {found[2]} literal"
        return f"invalid value '{found[3]}' for '{found[1]} <VALUE>': {kind}"
    found = re.match(r"argument (?:\S+/)*(\S+): expected (?:one|at least one) argument", message)
    if found:
        return f"a value is required for '{found[1]} <VALUE>' but none was supplied"
    return message


def read_catalogue(path: Path) -> Mapping[str, Any]:
    """The catalogue document in ``path``, as plain data."""
    document: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return document


def catalogue_for(folder: Path, stem: str, version: str) -> tuple[Path, str]:
    """The catalogue ``STEM-VERSION.json`` in ``folder`` for a version.

    That one, else the nearest lower, else the lowest; an empty ``version`` means the newest. Returns the file and its
    own version.
    """
    files = {path.stem.removeprefix(f"{stem}-"): path for path in folder.glob(f"{stem}-*.json")}
    ordered = sorted(files, key=version_key)
    lower = [found for found in ordered if not version or version_key(found) <= version_key(version)]
    chosen = lower[-1] if lower else ordered[0]
    return files[chosen], chosen


def version_key(version: str) -> tuple[int, ...]:
    """The numbers of a version, for comparing."""
    return tuple(int(part) for part in re.findall(r"\d+", version))


def build_parser(document: Mapping[str, Any], *, prog: str, style: Style = "argparse") -> StandInParser:
    """A parser for the flags of a catalogue.

    ``document``: ``{"flags": [{names, aliases, arity, type, choices, default, negatable, repeatable, positional,
    deprecated, successor}]}``, and ``underscores`` where long names are taken with either sign.
    ``prog``: the program's name in messages.
    """
    parser = StandInParser(prog=prog, style=style)
    parser.dashes_only = not document.get("underscores", False)
    for flag in document["flags"]:
        names = _option_names(flag)
        if flag.get("positional"):
            parser.add_argument(str(flag["positional"]), nargs="?" if flag.get("arity") == "?" else None)
        elif set(names) & {"-h", "--help"}:
            continue
        else:
            _add_option(parser, flag, names)
    return parser


def _option_names(flag: Mapping[str, Any]) -> list[str]:
    names = [*flag.get("names", ()), *(flag.get("aliases") or ())]
    return list(dict.fromkeys(name for name in names if name.startswith("-")))


def _add_option(parser: argparse.ArgumentParser, flag: Mapping[str, Any], names: list[str]) -> None:
    dest = next((name for name in names if name.startswith("--")), names[0]).lstrip("-").replace("-", "_")
    arity = flag.get("arity", 1)
    options: dict[str, Any] = {"dest": dest, "default": None}
    if flag.get("deprecated"):
        options["help"] = f"deprecated: {flag.get('successor') or 'has no effect'}"
    if flag.get("negatable"):
        names = [name for name in names if not (name.startswith("--no-") and f"--{name[5:]}" in names)]
        parser.add_argument(*names, action=argparse.BooleanOptionalAction, **options)
        parser.set_defaults(**{dest: _default(flag, bool)})
        return
    if arity == 0:
        parser.add_argument(*names, action="store_true", **{**options, "default": _default(flag, bool) or False})
        return
    convert = _converter(str(flag.get("type") or "str"), str(flag.get("kind") or ""))
    options["type"] = convert
    options["default"] = _default(flag, convert)
    choices = flag.get("choices")
    if isinstance(choices, (list, tuple)):
        options["choices"] = [_quietly(convert, choice) for choice in choices]
    nargs = _nargs(arity)
    if isinstance(nargs, tuple):
        parser.add_argument(*names, nargs="+", action=_bounded(nargs[1]), **options)
    elif flag.get("repeatable"):
        # argparse appends to the default, clap and the engines' own lists start empty.
        parser.add_argument(*names, nargs=nargs, action="append", **{**options, "default": None})
    else:
        parser.add_argument(*names, nargs=nargs, **options)


def _nargs(arity: Any) -> int | str | tuple[int, int] | None:
    """argparse's ``nargs`` for a catalogue's arity; a pair for at least one and at most n words.

    An arity is a number, ``?``, ``*``, ``+``, a range (``[1, 2]``, ``"1-2"``, ``{"min": 1, "max": 2}``), or a usage
    text such as ``url [port|none]``, in which each word stands for one value.
    """
    if isinstance(arity, bool) or arity is None:
        return None
    if isinstance(arity, int):
        return None if arity == 1 else arity
    if isinstance(arity, Mapping):
        return (int(arity["min"]), int(arity["max"]))
    if isinstance(arity, (list, tuple)):
        return (int(arity[0]), int(arity[1]))
    text = str(arity)
    if text in ("?", "*", "+"):
        return text
    found = re.fullmatch(r"(\d+)\s*(?:-|\.\.)\s*(\d+)", text)
    if found:
        return (int(found[1]), int(found[2]))
    return (1, len(text.split()))


def _bounded(most: int) -> type[argparse.Action]:
    """An action for a repeatable flag that takes one to ``most`` words each time."""

    class Bounded(argparse.Action):
        def __call__(
            self,
            parser: argparse.ArgumentParser,
            namespace: argparse.Namespace,
            values: str | Sequence[Any] | None,
            option_string: str | None = None,
        ) -> None:
            words = list(values or ())
            if len(words) > most:
                parser.error(f"unrecognized arguments: {words[most]}")
            setattr(namespace, self.dest, [*(getattr(namespace, self.dest) or ()), words])

    return Bounded


def _quietly(convert: Callable[[str], Any], value: Any) -> Any:
    try:
        return convert(value) if isinstance(value, str) else value
    except (ValueError, argparse.ArgumentTypeError):
        return value


def _default(flag: Mapping[str, Any], convert: Callable[[str], Any]) -> Any:
    """The default of a flag; catalogues of Rust programs hold it as text, and some as the name of a constant."""
    value = flag.get("default")
    if convert is bool and isinstance(value, str):
        return value == "true"
    if not isinstance(value, str):
        return value
    converted = _quietly(convert, value)
    expected = {"int": int, "float": float}.get(str(flag.get("type")))
    return None if expected and not isinstance(converted, expected) else converted


def after_program(argv: Sequence[str], program: Sequence[str]) -> list[str]:
    """The words of ``argv`` that follow the program words; wrappers may stand before them.

    Exits with 127, as a shell would, where the program is not there.
    """
    width = len(program)
    for start in range(len(argv) - width + 1):
        if list(argv[start : start + width]) == list(program):
            return list(argv[start + width :])
    sys.stderr.write(f"{' '.join(argv[:3]) or 'no command'}: not found: expected {' '.join(program)} …\n")
    sys.exit(127)


# --- types -------------------------------------------------------------------------------------------------------


def _converter(type_name: str, kind: str) -> Callable[[str], Any]:
    """The conversion for a catalogue's type; its ``__name__`` is what argparse shows in ``invalid X value``.

    ``kind`` tells what a type that wraps another one takes: ``int``, ``float``, ``size``, ``json``, ``json_object``.
    """
    if type_name in ("int", "float"):
        return {"int": int, "float": float}[type_name]
    convert: Callable[[str], Any]
    if type_name in _JSON_TYPES:
        convert = json.loads
    elif type_name in _JSON_OR_TEXT_TYPES:
        convert = _json_or_text
    elif type_name == "json_list_type":
        convert = _json_list
    elif type_name in ("human_readable_int", "human_readable_int_or_auto"):
        convert = _auto_or_int if type_name.endswith("_or_auto") else _human_int
    elif type_name == "_optional_type":
        convert = _optional(_KINDS.get(kind, str))
    elif type_name == "nullable_str":
        convert = _nullable
    else:
        return str

    def named(text: str) -> Any:
        return convert(text)

    named.__name__ = type_name.rsplit(".", 1)[-1]
    return named


def _optional(convert: Callable[[str], Any]) -> Callable[[str], Any]:
    return lambda text: None if text in ("", "None") else convert(text)


def _json_or_text(text: str) -> Any:
    return json.loads(text) if text.lstrip().startswith(("{", "[")) else text


def _json_list(text: str) -> Any:
    value = json.loads(text)
    if not isinstance(value, list):
        raise ValueError(text)
    return value


def _human_int(text: str) -> int:
    found = re.fullmatch(r"(-?\d+(?:\.\d+)?)([kKmMgGtT]?)", text.strip())
    if not found:
        raise ValueError(text)
    return int(float(found[1]) * _SUFFIX[found[2]]) if found[2] else int(found[1])


def _auto_or_int(text: str) -> int:
    return -1 if text in ("auto", "-1") else _human_int(text)


def _nullable(text: str) -> str | None:
    return None if text in ("", "None", "none", "null") else text


_KINDS: Mapping[str, Callable[[str], Any]] = {
    "int": int,
    "float": float,
    "size": _human_int,
    "json": json.loads,
    "json_object": json.loads,
    "json_or_text": _json_or_text,
}
