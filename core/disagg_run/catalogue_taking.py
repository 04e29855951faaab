"""Taking a flag catalogue from an installed program: its own parser says what it takes, and nothing is started.

The program is called in its own interpreter, up to the moment when it asks an argparse parser to parse
(``catalogue_capture`` does that there). Nothing here knows an engine: plugins name their programs (``Engine.parsers``).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from disagg_run.bounded_process import run_bounded
from disagg_run.catalogue import SCHEMA, Catalogue, FlagSpec
from disagg_run.errors import RunError, SpecError
from disagg_run.input_files import os_reason

_CAPTURE = Path(__file__).with_name("catalogue_capture.py")
#: Keys of a flag's record in the order in which they are written.
_KEYS = (
    *("names", "aliases", "positional", "arity", "metavar", "type", "kind", "literals", "choices", "default"),
    *("negatable", "repeatable", "deprecated", "successor", "note"),
)


def take_catalogue(
    python: str,
    program: Sequence[str],
    *,
    distributions: Iterable[str] = (),
    version: str = "",
    timeout_s: float = 180.0,
) -> dict[str, Any]:
    """The catalogue document (``catalogue.py`` has its schema) of a program installed for the interpreter ``python``.

    ``program``: ``("@python", "-m", "toy.server")``, or a console script beside ``python`` with its subcommands:
    ``("toy", "serve")``. ``distributions``: names whose installed version is the program's, the first that is there
    counts; otherwise it is that of the distribution that brought the program. ``version``: overrules both.

    Raises SpecError where the interpreter or the program is not there, RunError where no parser was reached: the
    program failed, ended, or took longer than ``timeout_s`` seconds.
    """
    shown = command_text(program)
    request = {"program": list(program), "distributions": list(distributions)}
    found, why = _run_capture(python, request, timeout_s)
    if found.get("problem") == "missing":
        raise SpecError(f"{shown!r} is not installed for {python!r}", remedy="give the interpreter that has it")
    if found.get("problem") == "failed":
        detail = " ".join(str(found["detail"]).split())
        raise RunError(f"{shown!r} failed before it asked an argument parser: {detail}")
    if found.get("problem") == "ended":
        raise RunError(f"{shown!r} ended and asked no argparse parser{_because(found['detail'] or why)}")
    if "flags" not in found:
        raise RunError(
            f"{shown!r} did not get to its argument parser{_because(why)}",
            remedy=f"{python!r} must be the Python interpreter that has it, and it must start there",
        )
    version = version or found["version"].partition("+")[0]
    if not version:
        raise SpecError(f"no installed distribution says the version of {shown!r}", remedy="give it with --as VERSION")
    flags = sorted(map(_tidy, found["flags"]), key=lambda flag: flag["names"])
    head: dict[str, Any] = {"schema": SCHEMA, "command": shown, "version": version}
    head["source"] = f"{found['distribution'] or shown} {found['version'] or version}, its own parser"
    if found.get("underscores"):
        head["underscores"] = True
    if found.get("suffixes"):
        head["suffixes"] = found["suffixes"]
    return {**head, "flags": flags}


def is_installed(python: str, program: Sequence[str], *, timeout_s: float = 60.0) -> bool:
    """Whether the interpreter has the program; it is not imported. Raises SpecError where ``python`` cannot be run."""
    request = {"program": list(program), "distributions": [], "look": True}
    found, why = _run_capture(python, request, timeout_s)
    if "installed" not in found:
        raise RunError(f"the interpreter {python!r} cannot be asked{_because(why)}")
    return bool(found["installed"])


def command_text(program: Sequence[str]) -> str:
    """A program's words as a person would type them."""
    return " ".join("python3" if word == "@python" else word for word in program)


def catalogue_text(document: Mapping[str, Any]) -> str:
    """A catalogue document as the text of its file: one flag a line, so that two versions can be compared."""
    head = {key: value for key, value in document.items() if key != "flags"}
    lines = [f" {json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}," for key, value in head.items()]
    flags = [f"  {json.dumps(flag, ensure_ascii=False, separators=(',', ':'))}" for flag in document["flags"]]
    return "\n".join(["{", *lines, ' "flags": [', ",\n".join(flags), " ]", "}", ""])


def _tidy(flag: Mapping[str, Any]) -> dict[str, Any]:
    """A record with keys and choices in a fixed order: a program may list its choices in another one each time."""
    tidy = {key: flag[key] for key in _KEYS if key in flag}
    if "choices" in tidy:
        tidy["choices"] = sorted(tidy["choices"], key=lambda text: (int(text) if text.isdecimal() else 0, text))
    return tidy


def _because(why: str) -> str:
    return f": {why}" if why else ""


# --- the foreign interpreter -------------------------------------------------------------------------------------


def _run_capture(python: str, request: Mapping[str, Any], timeout_s: float) -> tuple[dict[str, Any], str]:
    """What the capture wrote, and in one clause why it may not have written all."""
    executable = shutil.which(python)
    if executable is None:
        raise SpecError(f"the interpreter {python!r} is not there or cannot be executed")
    with tempfile.TemporaryDirectory(prefix="disagg-run-catalogue-") as folder:
        empty, output, errors = Path(folder, "empty"), Path(folder, "found.json"), Path(folder, "stderr")
        empty.mkdir()
        command = [os.path.abspath(executable), str(_CAPTURE), str(output), json.dumps(request)]
        why = _run(command, empty, errors, timeout_s)
        if not output.exists():
            return {}, why or "it wrote nothing; a Python of version 3.8 or newer is needed"
        found: dict[str, Any] = json.loads(output.read_text(encoding="utf-8"))
        return found, why


def _run(command: Sequence[str], cwd: Path, errors: Path, timeout_s: float) -> str:
    """Run a command with all that it starts, for a time; returns how it went wrong, or its last error line."""
    with errors.open("wb") as stderr:
        try:
            status = run_bounded(command, timeout_s=timeout_s, stdout=subprocess.DEVNULL, stderr=stderr, cwd=cwd)
        except OSError as error:
            raise SpecError(f"the interpreter {command[0]!r} cannot be run: {os_reason(error)}") from error
    if status is None:
        return f"it took longer than {timeout_s:g} s"
    said = errors.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    last = said[-1].strip() if said else ""
    if status < 0:
        return f"it was ended by signal {-status}" + (f", after {last!r}" if last else "")
    return last or ("" if status == 0 else f"it ended with exit code {status}")


# --- comparing ---------------------------------------------------------------------------------------------------


def differences(old: Catalogue, new: Catalogue) -> tuple[str, ...]:
    """What changed from ``old`` to ``new``, a line for each flag: ``+`` new, ``-`` gone, ``~`` changed."""
    lines: list[tuple[str, str]] = []
    for flag in old.flags():
        counterpart = next((spec for spec in map(new.lookup, flag.names) if spec is not None), None)
        if counterpart is None:
            lines.append((flag.name, f"- {flag.name}"))
            continue
        changes = _changes(flag, counterpart)
        if changes:
            lines.append((flag.name, f"~ {flag.name}: {'; '.join(changes)}"))
    for flag in new.flags():
        if all(old.lookup(name) is None for name in flag.names):
            lines.append((flag.name, f"+ {flag.name}"))
    return tuple(line for _, line in sorted(lines))


def _changes(old: FlagSpec, new: FlagSpec) -> list[str]:
    changes = [
        *_listed("name", old.names, new.names),
        *_listed("choice", old.choices, new.choices),
    ]
    if (old.min_values, old.max_values) != (new.min_values, new.max_values):
        changes.append(f"takes {_count(new)} values, before {_count(old)}")
    if old.kind and new.kind and old.kind != new.kind:
        changes.append(f"takes {new.kind}, before {old.kind}")
    if None not in (old.default, new.default) and old.default != new.default:
        changes.append(f"default {json.dumps(new.default)}, before {json.dumps(old.default)}")
    for word, before, now in (
        ("repeatable", old.repeatable, new.repeatable),
        ("negatable", bool(old.negations), bool(new.negations)),
        ("deprecated", old.deprecated, new.deprecated),
    ):
        if before != now:
            changes.append(f"{'now' if now else 'no longer'} {word}")
    if new.successor and new.successor != old.successor:
        changes.append(f"write {new.successor} instead")
    return changes


def _listed(what: str, old: Sequence[str], new: Sequence[str]) -> list[str]:
    gone = [text for text in old if text not in new]
    come = [text for text in new if text not in old]
    said = [f"new {what} {', '.join(come)}"] if come else []
    return [*said, f"no {what} {', '.join(gone)} any more"] if gone else said


def _count(flag: FlagSpec) -> str:
    least, most = flag.min_values, flag.max_values
    return f"{least}" if least == most else f"{least} or more" if most is None else f"{least} to {most}"
