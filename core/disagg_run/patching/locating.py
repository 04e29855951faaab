"""Where an installation lies and which versions it has, found without importing it."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

import attrs

from disagg_run.errors import PatchError
from disagg_run.spec.model import as_tuple, frozen_map

#: Seconds that an interpreter gets to say where its packages lie.
ASK_TIMEOUT_S = 60.0

# Runs in the engine's interpreter, which may be older or newer than ours: plain Python 3.8, standard library. find_spec
# on a top-level name imports nothing. The marker keeps what a sitecustomize may print apart from the answer.
_ASK = r"""
import importlib.metadata, importlib.util, json, os, sys
sys.path = [p for p in sys.path if p]
asked = json.loads(sys.argv[1])
roots, versions = {}, {}
for top in asked["tops"]:
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        spec = None
    where = None
    if spec is not None and spec.submodule_search_locations:
        where = list(spec.submodule_search_locations)[0]
    elif spec is not None and spec.has_location:
        where = spec.origin
    roots[top] = where and os.path.dirname(os.path.abspath(where))
for name in asked["distributions"]:
    try:
        versions[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        pass
print("\ndisagg-run-answer " + json.dumps({"roots": roots, "versions": versions, "path": sys.path}))
"""


@attrs.frozen(kw_only=True)
class Site:
    """An installation as one interpreter, or one directory, has it."""

    #: What was looked at, for messages: an interpreter or a directory.
    name: str
    #: Import root of each top-level package or module that was found.
    roots: Mapping[str, Path] = attrs.field(converter=frozen_map)
    #: Version of each distribution that was found, by the name that was asked for.
    versions: Mapping[str, str] = attrs.field(converter=frozen_map)
    #: Where packages are looked for, in order.
    searched: tuple[Path, ...] = attrs.field(converter=as_tuple)

    def path(self, file: str) -> Path | None:
        """Where a file, given relative to the import root, lies; None = its package is not installed."""
        root = self.roots.get(top_of(file))
        return None if root is None else root / file

    def version(self, packages: Iterable[str]) -> tuple[str, str] | None:
        """The first of ``packages`` that is installed, with its version."""
        for name in packages:
            if name in self.versions:
                return name, self.versions[name]
        return None


def top_of(file: str) -> str:
    """The top-level package or module of a file: ``toy`` of ``toy/server.py``."""
    first = file.split("/")[0]
    return first[:-3] if "/" not in file and first.endswith(".py") else first


def locate_site(
    tops: Iterable[str], distributions: Iterable[str], *, target: str | Path | None = None, python: str | None = None
) -> Site:
    """Find packages and versions in the directory ``target``, or as the interpreter ``python`` would import them.

    ``tops``: top-level package names. Neither ``target`` nor ``python``: the first ``python3`` of ``PATH``, which is
    the engine's in an engine's image. Raises PatchError where there is no such directory or interpreter.
    """
    if target is not None and python is not None:
        raise PatchError("a directory and an interpreter are given", remedy="give one of --target and --python")
    if target is not None:
        return _in_directory(Path(target), tops, distributions)
    return _as_imported(python or shutil.which("python3") or sys.executable, tops, distributions)


def _in_directory(target: Path, tops: Iterable[str], distributions: Iterable[str]) -> Site:
    if not target.is_dir():
        raise PatchError(
            f"there is no directory {str(target)!r}",
            remedy="give the directory in which the package's own lies",
        )
    target = target.resolve()
    wanted = {_normal(name): name for name in distributions}
    versions: dict[str, str] = {}
    for each in importlib.metadata.distributions(path=[str(target)]):
        name = wanted.get(_normal(each.metadata["Name"] or ""))
        if name is not None:
            versions.setdefault(name, each.version)
    roots = {top: target for top in tops if (target / top).is_dir() or (target / f"{top}.py").is_file()}
    return Site(name=f"directory {target}", roots=roots, versions=versions, searched=[target])


def _as_imported(python: str, tops: Iterable[str], distributions: Iterable[str]) -> Site:
    question = json.dumps({"tops": sorted(set(tops)), "distributions": list(distributions)})
    try:
        done = subprocess.run(
            [python, "-c", _ASK, question],
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=ASK_TIMEOUT_S,
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
            check=False,
        )
    except OSError as error:
        raise PatchError(
            f"cannot run the interpreter {python!r}: {error.strerror}", remedy="name the engine's own with --python"
        ) from None
    except subprocess.TimeoutExpired:
        raise PatchError(f"the interpreter {python!r} gave no answer in {ASK_TIMEOUT_S:.0f} s") from None
    _, mark, answer = done.stdout.rpartition("disagg-run-answer ")
    if done.returncode or not mark:
        last = (done.stderr.strip() or "no message").splitlines()[-1]
        raise PatchError(
            f"{python!r} cannot say where its packages lie: {last}", remedy="name a Python 3 with --python"
        )
    found = json.loads(answer)
    roots = {top: Path(where).resolve() for top, where in found["roots"].items() if where}
    searched = dict.fromkeys(Path(where).resolve() for where in found["path"])
    return Site(name=f"interpreter {python}", roots=roots, versions=found["versions"], searched=searched)


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
