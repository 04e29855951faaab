"""One process's command and environment: plugins' contributions and the user's words, merged and checked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import attrs

from disagg_run.catalogue import Catalogue, load_catalogue, pick_catalogue
from disagg_run.context import ProcessContext
from disagg_run.declarations import Engine
from disagg_run.flags import MergedFlag, check_flags, merge_flags, render, split_words
from disagg_run.host import Selection
from disagg_run.planning.document import Provenance
from disagg_run.planning.environment import MergedEnv, merge_env
from disagg_run.records import Command, EnvSetting, Flag
from disagg_run.sources import Source
from disagg_run.spec.model import ArgText, LaunchSpec, ProcessSpec


@attrs.frozen(kw_only=True)
class Program:
    """A program's catalogue for a plan, and how sure it is."""

    catalogue: Catalogue | None
    #: Whether the catalogue is of exactly the version planned for.
    exact: bool
    version: str


@attrs.frozen(kw_only=True)
class BuiltCommand:
    """A finished command with its provenance."""

    program: tuple[str, ...]
    flags: tuple[MergedFlag, ...]
    argv: tuple[str, ...]
    image: str | None
    warnings: tuple[str, ...]
    #: ``argv/--flag`` and ``argv/--flag/key`` -> who set it and what that replaced.
    provenance: Mapping[str, Provenance]


def program_catalogue(engine: Engine, program: str, version: str) -> Program:
    """The catalogue to check a program's flags against; for a router without a stated version, the newest one."""
    refs = [ref for ref in engine.catalogues if ref.program == program]
    if not refs:
        return Program(catalogue=None, exact=False, version=version)
    if not version:
        newest = max(refs, key=lambda ref: _release(ref.version))
        return Program(catalogue=load_catalogue(newest), exact=True, version=newest.version)
    picked = pick_catalogue(refs, program, version)
    if picked is None:
        return Program(catalogue=None, exact=False, version=version)
    return Program(catalogue=picked[0], exact=picked[1], version=version)


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("+")[0].split(".") if part.isdigit())


def build_command(
    selection: Selection, ctx: ProcessContext, program: Program, *, command: Command, asked: Iterable[ArgText]
) -> BuiltCommand:
    """Merge the ``command`` that a plugin gave with further plugins' flags and the user's own words.

    Raises FlagError and ConflictError naming the flag, its sources and the process.
    """
    name = ctx.process.name
    flags: list[Flag] = list(command.flags)
    flags += [contribution.record for contribution in selection.args(ctx)]
    for text in asked:
        flags += split_words(text.words, program.catalogue, text.source)
    merged = merge_flags(flags, program.catalogue, where=name)
    warnings = tuple(dict.fromkeys(flag.remark for flag in flags if flag.remark))
    if program.catalogue is not None:
        warnings += check_flags(
            merged,
            program.catalogue,
            exact=program.exact,
            gone=tuple(gone for gone in ctx.engine.gone_flags if gone.program == program.catalogue.program),
            version=program.version,
            where=ctx.process.role or name,
        )
    return BuiltCommand(
        program=command.program,
        flags=merged,
        argv=(*command.program, *render(merged)),
        image=command.image,
        warnings=warnings,
        provenance=flag_provenance(merged),
    )


def flag_provenance(merged: Iterable[MergedFlag]) -> dict[str, Provenance]:
    """Who set each flag and JSON leaf, and what that replaced, by ``argv/--flag`` and ``argv/--flag/key``."""
    provenance: dict[str, Provenance] = {}
    for flag in merged:
        key = "argv/" + _escaped(flag.name)
        mine = ((flag.source, flag.text), *flag.replaced)
        provenance[key] = (*provenance.get(key, ()), *mine)
        for leaf, source in flag.leaf_sources.items():
            provenance[f"{key}/{_escaped(leaf)}"] = ((source, ""),)
    return provenance


def _escaped(part: str) -> str:
    return part.replace("~", "~0").replace("/", "~1")


def asked_args(spec: LaunchSpec, ctx: ProcessContext) -> tuple[ArgText, ...]:
    """The user's own words for a process: for all servers, its role, then the process by name (the narrower last)."""
    process = ctx.process
    own = spec.processes.get(process.name, ProcessSpec()).args
    if process.kind == "router":
        return (*spec.router.args, *own)
    if process.role is None:
        return own
    return (*spec.args, *ctx.role_spec.args, *own)


def build_env(selection: Selection, ctx: ProcessContext, *, further: Iterable[EnvSetting] = ()) -> MergedEnv:
    """Merge plugins' variables with the user's for one process; ``further`` are settings that came with the process."""
    settings = [contribution.record for contribution in selection.env(ctx)]
    settings += further
    settings += asked_env(ctx.spec, ctx)
    return merge_env(settings, where=ctx.process.name)


def asked_env(spec: LaunchSpec, ctx: ProcessContext) -> list[EnvSetting]:
    """The user's own variables for a process, the narrower target last, and the secrets that it is given by name."""
    process = ctx.process
    settings: list[EnvSetting] = []

    def add(values: Mapping[str, str], path: str) -> None:
        settings.extend(EnvSetting(name, value, source=spec.source(f"{path}.{name}")) for name, value in values.items())

    if process.role is not None:
        add(spec.env, "env")
        add(spec.role(process.role).env, f"{process.role}.env")
    elif process.kind == "router":
        add(spec.router.env, "router.env")
    own = spec.processes.get(process.name)
    if own is not None:
        add(own.env, f"processes.{process.name}.env")
    secret_source: Source = spec.source("secrets")
    settings.extend(EnvSetting(name, op="secret", source=secret_source) for name in spec.secrets)
    return settings
