"""Where an installation lies and which versions it has, found without importing it."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import attrs

from disagg_run.bounded_process import run_bounded
from disagg_run.errors import PatchError
from disagg_run.input_files import os_reason
from disagg_run.patching import searching
from disagg_run.patching.ordering import top_of
from disagg_run.spec.model import as_tuple, frozen_map

#: Seconds that an interpreter gets to say where its packages lie.
ASK_TIMEOUT_S = 60.0


def _resolved(where: str | Path) -> Path:
    return Path(where).resolve()


@attrs.frozen(kw_only=True)
class Installed:
    """A distribution, as its metadata tell."""

    #: As it was asked for.
    name: str
    #: "" = the metadata name none.
    version: str
    #: Directory that holds the metadata.
    where: Path = attrs.field(converter=_resolved)
    #: Top-level packages and modules, of those asked for, in which it lists files as its own.
    owns: tuple[str, ...] = attrs.field(default=(), converter=as_tuple)

    def __str__(self) -> str:
        return f"{self.name} {self.version}".rstrip()


@attrs.frozen(kw_only=True)
class Site:
    """An installation as one interpreter, or one directory, has it."""

    #: What was looked at, for messages: an interpreter or a directory.
    name: str
    #: Import root of each top-level package or module that was found.
    roots: Mapping[str, Path] = attrs.field(converter=frozen_map)
    #: The distributions that were found, in the order of the names and for each in that of the search.
    installed: tuple[Installed, ...] = attrs.field(converter=as_tuple)
    #: Where packages are looked for, in order.
    searched: tuple[Path, ...] = attrs.field(converter=as_tuple)

    def path(self, file: str) -> Path | None:
        """Where a file, given relative to the import root, lies; None = its package is not installed."""
        root = self.roots.get(top_of(file))
        return None if root is None else root / file

    @property
    def versions(self) -> Mapping[str, str]:
        """Version of each distribution that was found, by the name that was asked for."""
        return {each.name: each.version for each in reversed(self.installed)}

    def distributions(self, names: Iterable[str]) -> tuple[Installed, ...]:
        """Those of ``names`` that are installed, in the order of the names, then in that of the search."""
        return tuple(each for name in names for each in self.installed if each.name == name)


def locate_site(
    tops: Iterable[str],
    distributions: Iterable[str],
    *,
    target: str | Path | None = None,
    python: str | None = None,
    env: Mapping[str, str] | None = None,
) -> Site:
    """Find packages and versions in the directory ``target``, or as the interpreter ``python`` would import them.

    ``tops``: top-level package names. Neither ``target`` nor ``python``: the first ``python3`` of ``PATH``, which is
    the engine's in an engine's image. ``env``: the environment in which the interpreter will run the engine, whose
    ``PYTHONPATH`` counts; None = this process's. Raises PatchError where there is no such directory or interpreter.
    """
    if target is not None and python is not None:
        raise PatchError("a directory and an interpreter are given", remedy="give one of --target and --python")
    if target is not None:
        return _in_directory(Path(target), tops, distributions)
    python = python or shutil.which("python3") or sys.executable
    if not python:  # an embedded Python does not know its program
        raise PatchError("there is no python3 in PATH to ask where packages lie", remedy="name one with --python")
    return _as_imported(python, tops, distributions, os.environ if env is None else env)


def _in_directory(target: Path, tops: Iterable[str], distributions: Iterable[str]) -> Site:
    if not target.is_dir():
        raise PatchError(
            f"there is no directory {str(target)!r}",
            remedy="give the directory in which the package's own lies",
        )
    target = target.resolve()
    tops = tuple(tops)
    found = [Installed(**each) for each in searching.installed(distributions, tops, [str(target)])]
    roots = {top: target for top in tops if (target / top).is_dir() or (target / f"{top}.py").is_file()}
    return Site(name=f"directory {target}", roots=roots, installed=found, searched=[target])


def _as_imported(python: str, tops: Iterable[str], distributions: Iterable[str], env: Mapping[str, str]) -> Site:
    question = json.dumps({"tops": sorted(set(tops)), "distributions": list(distributions)})
    status, said, complaint = _ask(python, question, env)
    if status is None:
        raise PatchError(
            f"the interpreter {python!r} gave no answer in {ASK_TIMEOUT_S:g} s",
            remedy="see what it does when it starts, or name another with --python",
        )
    found = _answer(said)
    if status or found is None:
        last = (complaint.strip() or "no message").splitlines()[-1]
        raise PatchError(
            f"{python!r} cannot say where its packages lie: {last}", remedy="name a Python 3 with --python"
        )
    roots = {top: Path(where).resolve() for top, where in found["roots"].items()}
    installed = [Installed(**each) for each in found["installed"]]
    searched = dict.fromkeys(Path(where).resolve() for where in found["path"])
    return Site(name=f"interpreter {python}", roots=roots, installed=installed, searched=searched)


def _answer(said: str) -> dict[str, Any] | None:
    """What the interpreter answered; what else it prints when it starts and ends stands before and in lines after."""
    _, mark, answer = said.rpartition(searching.MARKER)
    try:
        found = json.loads(answer.partition("\n")[0]) if mark else None
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _ask(python: str, question: str, env: Mapping[str, str]) -> tuple[int | None, str, str]:
    """The exit status of an interpreter that was asked, None = it was out of time, and what it wrote."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        try:
            status = run_bounded(
                [python, "-c", Path(searching.__file__).read_text(encoding="utf-8"), question],
                timeout_s=ASK_TIMEOUT_S,
                stdout=out,
                stderr=errors,
                env={**env, "PYTHONDONTWRITEBYTECODE": "1"},
            )
        except OSError as error:
            raise PatchError(
                f"cannot run the interpreter {python!r}: {os_reason(error)}",
                remedy="name the engine's own with --python",
            ) from None
        out.seek(0)
        errors.seek(0)
        return status, out.read().decode(errors="replace"), errors.read().decode(errors="replace")
