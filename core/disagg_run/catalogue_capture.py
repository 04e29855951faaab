"""Run inside a foreign interpreter: start a program up to its argument parser, write the parser's flags as JSON, leave.

    PYTHON catalogue_capture.py OUTPUT JSON

``JSON`` is ``{"program": [words], "distributions": [names]}``; ``catalogue_taking`` is the caller. Only the standard
library is used and nothing of disagg_run is imported, so that any Python from 3.8 on can run it. With ``"look": true``
it only says ``{"installed": true|false}``.

The program is imported and called just as its own command would be, with its positional words and no flags. The first
parser that it asks to parse is taken, except for one that only looks ahead (``parse_known_args`` of a parser without
``--help``). Positional words lead into subparsers. Then the process ends at once: nothing is started.

``OUTPUT`` becomes ``{"flags": […], "version": …, "distribution": …, "underscores": …}`` or
``{"problem": …, "detail": …}``. It is written once before the value types are tried out and once after, so that a type
that hangs or crashes costs only the ``kind`` of values.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import importlib.util
import io
import json
import os
import runpy
import sys
import warnings
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:  # Python 3.8 has no dict[str, Any]; annotations are never evaluated
    Record = dict[str, Any]

#: Text that no kind but plain text takes, and that shows whether the parser changes case or dashes.
PLAIN_TEXT = "Zq-Zq text"
TRIAL_TEXTS = ("", "None", "auto", PLAIN_TEXT, "{}", '{"zq": 1}', "[]", "7", "7.5", "1k")
#: What may stand behind a number in a size.
TRIAL_SUFFIXES = [letter + more for more in ("", "i", "B", "iB") for letter in "kKmMgGtT"]


class Converted(BaseException):
    """Carries the words that a parser hands on after its own changes to them."""


class Capture:
    """Stands in for argparse's parse methods; knows where to write and which words lead into subparsers."""

    def __init__(self, output: str, request: Record) -> None:
        self.output = output
        self.program: list[str] = request["program"]
        self.distributions: list[str] = request["distributions"]
        #: The last parser that only looked ahead.
        self.look_ahead: argparse.ArgumentParser | None = None
        self.trying_words = False

    def install(self) -> None:
        real_known: Any = argparse.ArgumentParser.parse_known_args

        def parse_args(parser: argparse.ArgumentParser, args: Any = None, namespace: Any = None) -> NoReturn:
            if self.trying_words:
                raise Converted(args)
            self.finish(parser)

        def parse_known_args(parser: argparse.ArgumentParser, args: Any = None, namespace: Any = None) -> Any:
            if parser.add_help:
                self.finish(parser)
            self.look_ahead = parser
            return real_known(parser, args, namespace)

        for name, stand_in in (
            ("parse_args", parse_args),
            ("parse_intermixed_args", parse_args),
            ("parse_known_args", parse_known_args),
            ("parse_known_intermixed_args", parse_known_args),
        ):
            setattr(argparse.ArgumentParser, name, stand_in)

    def finish(self, parser: argparse.ArgumentParser) -> NoReturn:
        """Write what ``parser`` takes and end the process, whatever threads or exit handlers it has."""
        outer, words = parser, positional_words(self.program)
        for word in words:
            parser = subparser(parser, word) or parser
        distribution, version = owner(self.program, self.distributions)
        flags = [(action, describe(action, parser)) for action in parser._actions if is_flag(action)]
        found: Record = {"version": version, "distribution": distribution, "flags": [flag for _, flag in flags]}
        self.write(found)
        quiet = io.StringIO()
        with contextlib.redirect_stdout(quiet), contextlib.redirect_stderr(quiet), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found["underscores"] = self.equates_underscores(outer, words)
            for action, flag in flags:
                flag.update(value_kind(action))
                if flag.get("kind") == "size":
                    found.setdefault("suffixes", {}).update(size_suffixes(action.type))
        self.write(found)
        os._exit(0)

    def equates_underscores(self, parser: argparse.ArgumentParser, words: list[str]) -> bool:
        """Whether the parser turns ``--a_b`` into ``--a-b`` before it parses."""
        self.trying_words = True
        try:
            parser.parse_args([*words, "--zq_zq"])
        except Converted as seen:
            return "--zq-zq" in (seen.args[0] or ())
        except BaseException:  # noqa: BLE001 - whatever a foreign parser does, it only costs this one answer
            return False
        finally:
            self.trying_words = False
        return False

    def write(self, found: Record) -> None:
        with open(self.output + ".part", "w", encoding="utf-8") as file:
            json.dump(found, file)
        os.replace(self.output + ".part", self.output)


# --- the program -------------------------------------------------------------------------------------------------


def positional_words(program: list[str]) -> list[str]:
    """The words after the program itself: ``serve`` of ``toy serve``, nothing of ``@python -m toy``."""
    skipped = 1 if program[0] != "@python" else 3 if program[1] == "-m" else 2
    return [word for word in program[skipped:] if not word.startswith("-")]


def script_path(program: list[str]) -> str:
    """The path of ``@python FILE``, or of a console script beside this interpreter."""
    return program[1] if program[0] == "@python" else os.path.join(os.path.dirname(sys.executable), program[0])


def is_installed(program: list[str]) -> bool:
    """Whether the program's module or script is there, without importing it."""
    if program[0] == "@python" and program[1] == "-m":
        try:
            return importlib.util.find_spec(program[2].split(".")[0]) is not None
        except (ImportError, ValueError):
            return False
    return os.path.isfile(script_path(program))


def run(program: list[str]) -> None:
    """Call the program as its command would, under the name ``__main__``."""
    words = positional_words(program)
    if program[0] == "@python" and program[1] == "-m":
        sys.argv = [program[2], *words]
        runpy.run_module(program[2], run_name="__main__", alter_sys=True)
        return
    path = script_path(program)
    with open(path, "rb") as file:
        head = file.read(200)
    if program[0] != "@python" and (not head.startswith(b"#!") or b"python" not in head):
        raise SystemExit(path + " is no Python program")
    sys.argv = [path, *words]
    runpy.run_path(path, run_name="__main__")


def owner(program: list[str], distributions: list[str]) -> tuple[str, str]:
    """Name and version of the first installed one of ``distributions``, else of what brought the program."""
    for name in distributions:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return name, importlib.metadata.version(name)
    for distribution in importlib.metadata.distributions():
        if brings(distribution, program):
            return distribution.metadata["Name"], distribution.version
    return "", ""


def brings(distribution: importlib.metadata.Distribution, program: list[str]) -> bool:
    """Whether a distribution brought the program's console script or its top-level package."""
    if program[0] != "@python":
        return any(e.group == "console_scripts" and e.name == program[0] for e in distribution.entry_points)
    if program[1] != "-m":
        return False
    package = program[2].split(".")[0]
    if package in (distribution.read_text("top_level.txt") or "").split():
        return True
    return any(file.parts[0] in (package, package + ".py") for file in distribution.files or ())


# --- the parser --------------------------------------------------------------------------------------------------


def subparser(parser: argparse.ArgumentParser, word: str) -> argparse.ArgumentParser | None:
    """The parser behind a subcommand's word, or None."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction) and word in action.choices:
            found: argparse.ArgumentParser = action.choices[word]
            return found
    return None


def is_flag(action: argparse.Action) -> bool:
    """Whether an action is one that a launch may set: no help, no version, no subcommand."""
    left_out = (argparse._HelpAction, argparse._VersionAction, argparse._SubParsersAction)
    return not isinstance(action, left_out) and not {"--help", "--version"} & set(action.option_strings)


def describe(action: argparse.Action, parser: argparse.ArgumentParser) -> Record:
    """The record of a flag in the schema of ``catalogue.py``, less the kind of its values."""
    arity: Any = 1 if action.nargs is None else action.nargs
    flag: Record = {"names": list(action.option_strings)}
    if not action.option_strings:
        flag["positional"] = action.dest
    flag["arity"] = "*" if arity in (argparse.REMAINDER, argparse.PARSER) else arity
    if arity != 0:
        flag["type"] = type_name(action.type)
        if action.choices is not None:
            flag["choices"] = [str(choice) for choice in action.choices]
    if action.default not in (None, argparse.SUPPRESS) and is_json(action.default):
        flag["default"] = action.default
    if arity == 0 and any("--no-" + name[2:] in action.option_strings for name in action.option_strings):
        flag["negatable"] = True  # argparse's BooleanOptionalAction, or an action of the program's own like it
    if isinstance(action, (argparse._AppendAction, argparse._AppendConstAction, argparse._CountAction)):
        flag["repeatable"] = True
    flag.update(deprecation(action, parser))
    return flag


def type_name(value_type: Any) -> str:
    """The name that the parser's own source gives to the type of its values."""
    return "str" if value_type is None else getattr(value_type, "__name__", None) or type(value_type).__name__


def is_json(value: Any) -> bool:
    try:
        return bool(json.loads(json.dumps(value, allow_nan=False)) == value)
    except (TypeError, ValueError):
        return False


def deprecation(action: argparse.Action, parser: argparse.ArgumentParser) -> Record:
    """Whether a flag is deprecated (argparse's mark, the parser's set of such, or the action's class), and its heir."""
    marked = getattr(parser, "_deprecated", ())
    mark = getattr(action, "deprecated", False) or (isinstance(marked, (set, frozenset, list)) and action in marked)
    if not mark and "deprecated" not in type(action).__name__.lower():
        return {}
    standard = ("dest", "help", "metavar", "const", "default")
    for name, value in vars(action).items():
        if name not in standard and isinstance(value, str) and value.startswith("--"):
            return {"deprecated": True, "successor": value}
    return {"deprecated": True}


# --- kinds of values, found by trying ----------------------------------------------------------------------------


def value_kind(action: argparse.Action) -> Record:
    """``kind`` and ``literals`` of a flag's values, by giving its type a few texts."""
    convert: Any = action.type
    if action.nargs == 0 or isinstance(convert, argparse.FileType):
        return {}
    if convert in (None, str, int, float):
        return {"kind": type_name(convert)}
    taken: Record = {}
    for text in TRIAL_TEXTS:
        with contextlib.suppress(BaseException):  # a refusal may be any exception of a foreign type
            taken[text] = convert(text)
    found: Record = {}
    kind = kind_of(taken)
    if kind:
        found["kind"] = kind
    literals = [text for text in ("", "None", "auto") if text in taken]
    if literals and PLAIN_TEXT not in taken:
        found["literals"] = literals
    return found


def kind_of(taken: Record) -> str:
    """The kind for what a type made of the trial texts; "" = no kind fits."""
    if PLAIN_TEXT in taken:
        if isinstance(taken.get("{}"), dict):
            return "json_or_text"
        return "str" if taken[PLAIN_TEXT] == PLAIN_TEXT and taken.get("7") == "7" else ""
    if "{}" in taken and not isinstance(taken["{}"], str):
        return "json" if taken.get("[]") == [] else "json_object"
    if "7" not in taken:
        return ""
    return "size" if "1k" in taken else "float" if "7.5" in taken else "int"


def size_suffixes(convert: Any) -> Record:
    """What a type of sizes multiplies by, for each suffix that it takes."""
    found: Record = {}
    for suffix in TRIAL_SUFFIXES:
        with contextlib.suppress(BaseException):  # as above: a refusal
            found[suffix] = int(convert("1" + suffix))
    return found


def main() -> None:
    output, request = sys.argv[1], json.loads(sys.argv[2])
    # Modules beside this file must not shadow the program's; the current folder is an empty one.
    sys.path[0] = ""
    capture = Capture(output, request)
    installed = is_installed(capture.program)
    if request.get("look"):
        capture.write({"installed": installed})
        return
    if not installed:
        capture.write({"problem": "missing", "detail": ""})
        return
    capture.install()
    problem, detail = "ended", ""
    try:
        run(capture.program)
    except SystemExit as stop:
        detail = stop.code if isinstance(stop.code, str) else ""
    except BaseException as error:  # noqa: BLE001 - the program's own failure, whatever it is, becomes one line
        problem, detail = "failed", f"{type(error).__name__}: {error}"
    if capture.look_ahead is not None and not detail:
        capture.finish(capture.look_ahead)
    capture.write({"problem": problem, "detail": detail})


if __name__ == "__main__":
    main()
