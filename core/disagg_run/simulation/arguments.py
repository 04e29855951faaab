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
from functools import partial
from pathlib import Path
from typing import Any, Literal, NoReturn

Style = Literal["argparse", "clap"]

#: Factors of sizes for a catalogue that does not say what its parser takes.
_SUFFIXES: Mapping[str, int] = {
    **{letter: 1000 ** (power + 1) for power, letter in enumerate("kmgt")},
    **{letter + more: 1024 ** (power + 1) for power, letter in enumerate("KMGT") for more in ("", "i")},
}


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
    """A parser for the flags of a catalogue, whose schema ``disagg_run.catalogue`` has.

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
            _add_option(parser, flag, names, document.get("suffixes", _SUFFIXES))
    return parser


def _option_names(flag: Mapping[str, Any]) -> list[str]:
    names = [*flag.get("names", ()), *(flag.get("aliases") or ())]
    return list(dict.fromkeys(name for name in names if name.startswith("-")))


def _add_option(
    parser: argparse.ArgumentParser, flag: Mapping[str, Any], names: list[str], suffixes: Mapping[str, int]
) -> None:
    dest = next((name for name in names if name.startswith("--")), names[0]).lstrip("-").replace("-", "_")
    arity = flag.get("arity", 1)
    options: dict[str, Any] = {"dest": dest, "default": flag.get("default")}
    if flag.get("deprecated"):
        options["help"] = f"deprecated: {flag.get('successor') or 'has no effect'}"
    if flag.get("negatable"):
        names = [name for name in names if not (name.startswith("--no-") and f"--{name[5:]}" in names)]
        parser.add_argument(*names, action=argparse.BooleanOptionalAction, **options)
        return
    if arity == 0:
        parser.add_argument(*names, action="store_true", **{**options, "default": bool(flag.get("default"))})
        return
    convert = options["type"] = _converter(flag, suffixes)
    if flag.get("choices"):
        options["choices"] = [convert(choice) for choice in flag["choices"]]
    least, dash, most = str(arity).partition("-")
    if dash:
        parser.add_argument(*names, nargs="+", action=_bounded(int(least), int(most)), **options)
        return
    nargs = None if arity == 1 else arity
    if flag.get("repeatable"):
        # argparse appends to the default, clap and the engines' own lists start empty.
        parser.add_argument(*names, nargs=nargs, action="append", **{**options, "default": None})
    else:
        parser.add_argument(*names, nargs=nargs, **options)


def _bounded(least: int, most: int) -> type[argparse.Action]:
    """An action for a repeatable flag that takes ``least`` to ``most`` words each time."""

    class Bounded(argparse.Action):
        def __call__(
            self,
            parser: argparse.ArgumentParser,
            namespace: argparse.Namespace,
            values: str | Sequence[Any] | None,
            option_string: str | None = None,
        ) -> None:
            words = list(values or ())
            if len(words) < least:
                parser.error(f"argument {'/'.join(self.option_strings)}: expected at least {least} arguments")
            if len(words) > most:
                parser.error(f"unrecognized arguments: {words[most]}")
            setattr(namespace, self.dest, [*(getattr(namespace, self.dest) or ()), words])

    return Bounded


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


def _converter(flag: Mapping[str, Any], suffixes: Mapping[str, int]) -> Callable[[str], Any]:
    """The conversion of a flag's values; its ``__name__`` is what argparse shows in ``invalid X value``.

    A literal of the flag (``None``, ``auto``) is taken and counts as not given.
    """
    kind, literals, choices = flag.get("kind"), flag.get("literals") or (), flag.get("choices") or ()
    name = str(flag.get("type") or "str").rsplit(".", 1)[-1]
    if name == "str":
        return str
    convert: Callable[[str], Any] = _KINDS.get(str(kind), str)
    if kind == "size":
        convert = partial(_size, suffixes)
    if kind is None and choices:
        spellings = {_folded(choice): choice for choice in choices}
        convert = partial(_nearest_spelling, spellings)

    def named(text: str) -> Any:
        return None if text in literals else convert(text)

    named.__name__ = name
    return named


def _folded(text: str) -> str:
    return text.lower().replace("-", "_")


def _nearest_spelling(spellings: Mapping[str, str], text: str) -> str:
    return spellings.get(_folded(text), text)


def _size(suffixes: Mapping[str, int], text: str) -> int:
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([A-Za-z]+)", text.strip())
    if not found:
        return int(text)
    if found[2] not in suffixes:
        raise ValueError(text)
    number, factor = found[1], suffixes[found[2]]
    return int(float(number) * factor) if factor % 10 == 0 else int(number) * factor


def _json_object(text: str) -> Any:
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError(text)
    return value


def _json_or_text(text: str) -> Any:
    return json.loads(text) if text.lstrip().startswith("{") else text


_KINDS: Mapping[str, Callable[[str], Any]] = {
    "int": int,
    "float": float,
    "json": json.loads,
    "json_object": _json_object,
    "json_or_text": _json_or_text,
}
