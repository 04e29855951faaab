"""Compiled forms of source files."""

from __future__ import annotations

import os
from pathlib import Path


def remove_caches(path: Path) -> None:
    """Remove the compiled forms of a source file, beside it and under ``PYTHONPYCACHEPREFIX``.

    A cache whose source has another time is stale by itself; one that is trusted unchecked is not, so all go.
    """
    places = [path.parent / "__pycache__"]
    prefix = os.environ.get("PYTHONPYCACHEPREFIX")
    if prefix:
        places.append(Path(prefix, *path.parent.parts[1:]))
    for place in places:
        for cache in place.glob(f"{_literal(path.stem)}.*.pyc"):
            cache.unlink(missing_ok=True)


def _literal(name: str) -> str:
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in name)
