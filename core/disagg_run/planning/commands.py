"""One process's command and environment: plugins' contributions and the user's words, merged and checked."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal

import attrs

from disagg_run.catalogue import Catalogue, pick_catalogue, version_key
from disagg_run.context import ProcessContext
from disagg_run.declarations import Engine
from disagg_run.flags import MergedFlag, check_flags, merge_flags, render, split_words
from disagg_run.gpus import shows_no_gpus
from disagg_run.host import Selection
from disagg_run.planning.alike_keys import check_alike
from disagg_run.planning.environment import MergedEnv, merge_env
from disagg_run.planning.owned import check_owned, check_owned_env, without_repeats
from disagg_run.planning.provenance import Provenance
from disagg_run.planning.secret_values import check_asked_env, check_asked_flags
from disagg_run.planning.setting_bounds import check_setting_bounds
from disagg_run.records import Command, EnvSetting, Flag
from disagg_run.sources import CORE_DEFAULT, Layer
from disagg_run.spec.model import ArgText, ProcessSpec


@attrs.frozen(kw_only=True)
class Program:
    """A program's catalogue for a plan, and how sure it is."""

    name: Literal["server", "router"]
    catalogue: Catalogue | None
    #: Whether the catalogue is of exactly the version planned for.
    exact: bool
    #: The version planned for; "" = none is stated, and there is no catalogue.
    version: str


@attrs.frozen(kw_only=True)
class BuiltCommand:
    """A finished command with its provenance."""

    program: tuple[str, ...]
    flags: tuple[MergedFlag, ...]
    argv: tuple[str, ...]
    image: str | None
    warnings: tuple[str, ...]
    #: Flags, and leaves of JSON flags by key path, whose value is the node's own (``Flag.per_node``).
    per_node: tuple[tuple[str, tuple[str, ...]], ...]
    #: ``argv/--flag`` and ``argv/--flag/key`` -> who set it and what that replaced.
    provenance: Mapping[str, Provenance]


def program_catalogue(engine: Engine, name: Literal["server", "router"], version: str) -> Program:
    """The catalogue to check a program's flags against; for a program without a stated version, the newest one."""
    if not version:
        known = (ref.version for ref in engine.catalogues if ref.program == name)
        version = max(known, key=version_key, default="")
    catalogue, exact = pick_catalogue(engine.catalogues, name, version) or (None, False)
    return Program(name=name, catalogue=catalogue, exact=exact, version=version)


def build_command(
    selection: Selection, ctx: ProcessContext, program: Program, *, command: Command, asked: Iterable[ArgText]
) -> BuiltCommand:
    """Merge the ``command`` that a plugin gave with further plugins' flags and the user's own words.

    Raises FlagError and ConflictError naming the flag, its sources and the process.
    """
    name = ctx.process.name
    further: list[Flag] = [contribution.record for contribution in selection.args(ctx)]
    planned = (*command.flags, *further)
    for text in asked:
        further += split_words(text.words, program.catalogue, text.source)
    flags = [each for each in (*command.flags, *further) if not each.implied]
    merged = merge_flags(flags, program.catalogue, where=name)
    # A setting that holds flags as one text, which a plugin passes on, is by hand as well.
    texts = [
        each for each in command.flags if not each.option and (each.source or CORE_DEFAULT).layer >= Layer.CONTRACT
    ]
    check_owned(planned, (*texts, *further), merged, program.catalogue, ctx)
    merged = without_repeats(planned, merged, program.catalogue)
    check_alike(planned, selection.parity, merged, program.catalogue, ctx.process.role or name)
    check_asked_flags(merged, ctx)
    if ctx.process.role is not None:
        check_setting_bounds(selection.settings.values(), merged, program.catalogue, ctx.process.role)
    warnings = tuple(dict.fromkeys(flag.remark for flag in flags if flag.remark))
    warnings += check_flags(
        merged,
        program.catalogue,
        exact=program.exact,
        gone=[gone for gone in ctx.engine.gone_flags if gone.program == program.name],
        version=program.version,
        where=ctx.process.role or name,
    )
    return BuiltCommand(
        program=command.program,
        flags=merged,
        argv=(*command.program, *render(merged, {each.name for each in flags if each.joined})),
        image=command.image,
        warnings=warnings,
        per_node=tuple(
            (each.name, tuple(key.split(".")) if key else ())
            for each in (*command.flags, *further)
            for key in each.per_node
        ),
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


def asked_args(ctx: ProcessContext) -> tuple[ArgText, ...]:
    """The user's own words for a process: for all servers, its role, then the process by name (the narrower last)."""
    spec, process = ctx.spec, ctx.process
    own = spec.processes.get(process.name, ProcessSpec()).args
    if process.kind == "router":
        return (*spec.router.args, *own)
    if process.role is None:
        return own
    return (*spec.args, *ctx.role_spec.args, *own)


def build_env(selection: Selection, ctx: ProcessContext) -> MergedEnv:
    """Merge plugins' variables for a server or the router with the user's, and the secrets that it is given by name."""
    planned = [contribution.record for contribution in selection.env(ctx)]
    secrets = [EnvSetting(name, op="secret", source=ctx.spec.source("secrets")) for name in ctx.spec.secrets]
    env = checked_env(planned, ctx, secrets)
    return attrs.evolve(env, no_gpus=True) if shows_no_gpus(planned) else env


def checked_env(planned: Sequence[EnvSetting], ctx: ProcessContext, secrets: Iterable[EnvSetting] = ()) -> MergedEnv:
    """Merge a process's ``planned`` variables with the user's and its ``secrets``.

    Raises SpecError for what the user may not give, ConflictError for plugins that differ.
    """
    asked = tuple(_asked_env(ctx))
    env = merge_env((*planned, *asked, *secrets), where=ctx.process.name)
    check_owned_env(planned, env, ctx)
    check_asked_env(asked, ctx)
    return env


def _asked_env(ctx: ProcessContext) -> Iterator[EnvSetting]:
    """The user's own variables for a process, the narrower target last."""
    spec, process = ctx.spec, ctx.process
    targets: list[tuple[str, Mapping[str, str]]] = []
    if process.role is not None:
        targets = [("env", spec.env), (f"{process.role}.env", ctx.role_spec.env)]
    elif process.kind == "router":
        targets = [("router.env", spec.router.env)]
    if process.name in spec.processes:
        targets.append((f"processes.{process.name}.env", spec.processes[process.name].env))
    for path, values in targets:
        for name, value in values.items():
            yield EnvSetting(name, value, source=spec.source(f"{path}.{name}"))
