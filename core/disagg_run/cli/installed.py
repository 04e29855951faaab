"""``--python EXE``: a plan for the engine that is installed there, with the flags that its own parser takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import attrs

from disagg_run.catalogue import Catalogue, version_key
from disagg_run.catalogue_taking import is_installed, take_catalogue
from disagg_run.errors import SpecError
from disagg_run.sources import Layer, Source

if TYPE_CHECKING:
    from disagg_run.declarations import Engine
    from disagg_run.planning.planner import ProgramName
    from disagg_run.spec.model import LaunchSpec


def as_installed(spec: LaunchSpec, engine: Engine, python: str) -> tuple[LaunchSpec, Mapping[ProgramName, Catalogue]]:
    """The spec with the version of the engine that the interpreter ``python`` has, and the catalogues of what it has.

    Its router's catalogue is taken where it has one. Raises SpecError where it has no engine, or another version than
    the one asked for, and RunError where the engine's parser cannot be reached.
    """
    server = engine.parsers.get("server")
    if server is None:
        raise SpecError(f"engine {engine.name!r} names no server program", remedy="leave --python out")
    taken: dict[ProgramName, Catalogue] = {"server": _take(python, "server", server, engine.distributions)}
    version = taken["server"].version
    asked = spec.engine_version
    if asked and version_key(asked) != version_key(version):
        raise SpecError(
            f"{python!r} has {engine.name} {version}, but {asked} is asked for ({spec.source('engine_version')})",
            remedy="leave the version out, or name the interpreter that has it",
        )
    router = engine.parsers.get("router")
    if router is not None and spec.router.mode == "plan" and is_installed(python, router):
        taken["router"] = _take(python, "router", router, ())
    if asked:
        return spec, taken
    why = taken["server"].source.partition(",")[0]
    source = Source(layer=Layer.COMMAND_LINE, where="--python", why=f"{why} is installed there")
    return attrs.evolve(spec, engine_version=version, sources={**spec.sources, "engine_version": source}), taken


def _take(python: str, program: ProgramName, words: tuple[str, ...], distributions: tuple[str, ...]) -> Catalogue:
    return Catalogue(take_catalogue(python, words, distributions=distributions), program=program)
