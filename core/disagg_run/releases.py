"""Releases compared: what an engine reads, and what its flags are called, depends on them."""

from __future__ import annotations

import functools

from packaging.version import Version


@functools.cache
def at_least(version: str, bound: str) -> bool:
    """Whether an engine ``version`` is ``bound`` or later; a pre-release or build of ``bound`` counts as it."""
    return Version(version).release >= Version(bound).release
