"""Look for packages and distributions, in a directory or, run by a foreign interpreter, as that one would import them.

    PYTHON -c TEXT_OF_THIS_FILE JSON

``JSON`` is ``{"tops": [names], "distributions": [names]}``; ``locating`` is the caller. Only the standard library is
used and nothing of disagg_run is imported, so that any Python from 3.8 on can run it. The answer stands after a marker,
which keeps what a sitecustomize may print apart from it.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # Python 3.8 has no dict[str, Any]; annotations are never evaluated
    from collections.abc import Iterable, Sequence

    Record = dict[str, Any]

MARKER = "disagg-run-answer "


def imported(tops: Iterable[str]) -> dict[str, str]:
    """The import root of each top-level package or module that this interpreter finds; none is imported."""
    roots = {}
    for top in tops:
        try:
            spec = importlib.util.find_spec(top)
        except (ImportError, ValueError):
            spec = None
        where = None
        if spec is not None and spec.submodule_search_locations:
            where = next(iter(spec.submodule_search_locations))
        elif spec is not None and spec.has_location:
            where = spec.origin
        if where:
            roots[top] = os.path.dirname(os.path.abspath(where))
    return roots


def installed(names: Iterable[str], tops: Sequence[str], path: list[str]) -> list[Record]:
    """The distributions of those names in the directories ``path``, in the order of search, as ``Installed`` has them.

    Two of one name in one directory, as a broken installation may have them, come by version and not by chance.
    """
    found = []
    for name in names:
        for place in path:
            there = importlib.metadata.distributions(name=name, path=[place])
            here = [{"name": name, "where": place, **_metadata(each, tops)} for each in there]
            found += sorted(here, key=lambda each: each["version"])
    return found


def _metadata(distribution: importlib.metadata.Distribution, tops: Sequence[str]) -> Record:
    found = distribution.metadata
    # Without its file some Pythons give None, and without a field some warn.
    version = found["Version"] if found is not None and "Version" in found else ""
    lines = (distribution.read_text("RECORD") or "").splitlines()
    owns = [top for top in tops if any(line.startswith((f"{top}/", f"{top}.py,")) for line in lines)]
    return {"version": version, "owns": owns}


def main() -> None:
    """Answer the question of the command line."""
    sys.path = [place for place in sys.path if place]
    asked = json.loads(sys.argv[1])
    found = installed(asked["distributions"], asked["tops"], sys.path)
    answer = {"roots": imported(asked["tops"]), "installed": found, "path": sys.path}
    print("\n" + MARKER + json.dumps(answer))


if __name__ == "__main__":
    main()
