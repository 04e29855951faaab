"""The options of a launch on the command line: made from the one table, shown under its headings, read into a spec."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from disagg_run.cli.output import remark
from disagg_run.errors import SpecError, UsageError
from disagg_run.spec.option import REPEATABLE, Option
from disagg_run.spec.options import NODES, OPTIONS, WHAT

if TYPE_CHECKING:
    from disagg_run.facts import NodeFacts
    from disagg_run.host import Host
    from disagg_run.spec.masterconfig_point import Point
    from disagg_run.spec.model import LaunchSpec

_METAVARS = {"int": "N", "float": "X", "sizes": "N[xN…]", "rate": "RATE", "args": "FLAGS", "simulation": "FLAGS"}


class GroupedOption(click.Option):
    """An option that stands under a heading of its own in ``--help``."""

    def __init__(self, *args: Any, heading: str, **more: Any) -> None:
        super().__init__(*args, **more)
        self.heading = heading

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """The option and its help; a switch and its negation in one word."""
        record = super().get_help_record(ctx)
        if record is None or not self.secondary_opts:
            return record
        return f"--[no-]{self.opts[0].removeprefix('--')}", record[1]


class GroupedHelp(click.Command):
    """A command whose help shows its own options first, then those of the table under their headings."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, heading by heading."""
        rows: dict[str, list[tuple[str, str]]] = {"Options": []}
        for param in self.get_params(ctx):
            record = None if isinstance(param, click.Argument) else param.get_help_record(ctx)
            if record is not None:
                rows.setdefault(getattr(param, "heading", "Options"), []).append(record)
        for heading, records in rows.items():
            with formatter.section(heading):
                formatter.write_dl(records)


@cache
def asking_options() -> tuple[click.Parameter, ...]:
    """All options of the table, ``--recipe`` and those of master configs; ``read_asked`` takes what they bring.

    Commands share them: click keeps nothing of a command in its parameters, and making them takes time.
    """
    files: tuple[tuple[str, str, str, Any], ...] = (
        ("--recipe", "FILE", "run file: YAML that can hold any of these options", None),
        ("--master-config", "FILE", "benchmark entries in YAML, in place of a run file", None),
        ("--entry", "NAME", "entry of the master config; default: its only one", None),
        ("--point", "N", "point of the entry's search space, from 0; default: its only one", click.IntRange(min=0)),
    )
    made = (GroupedOption([name], heading=WHAT, metavar=meta, help=text, type=kind) for name, meta, text, kind in files)
    about = "what nodes have, as `disagg-run facts --format json` prints it; may stand several times"
    facts = GroupedOption(["--facts"], heading=NODES, metavar="FILE", help=about, multiple=True)
    installed = "interpreter that has the engine: plan for its version and the flags that its parser takes"
    python = GroupedOption(["--python"], heading=WHAT, metavar="EXE", help=installed)
    return (*made, *map(_parameter, OPTIONS), facts, python)


def _parameter(option: Option) -> GroupedOption:
    names = [option.flag, *option.aliases]
    metavar: str | None = option.metavar or "|".join(option.choices) or _METAVARS.get(option.type, "TEXT")
    if option.type == "bool":
        names, metavar = [f"{option.flag}/--no-{option.flag.removeprefix('--')}"], None
    return GroupedOption(
        [*names, _keyword(option)],
        heading=option.group,
        help=option.summary,
        metavar=metavar,
        multiple=option.type in REPEATABLE,
        default=None,
    )


def _keyword(option: Option) -> str:
    return "asked_" + "_".join(option.key).replace("-", "_")


def read_asked(given: Mapping[str, Any], host: Host, *, point: Point | None = None) -> LaunchSpec:
    """The spec of all layers; ``given``: what the command line brought for ``asking_options``.

    ``point``: of a master config, where it is not the one that ``given`` names.
    """
    from disagg_run.spec.reading import read_spec

    if point is None:
        point = read_point(given)
    typed = {option.dotted: given[_keyword(option)] for option in OPTIONS}
    recipe = given["recipe"]
    if recipe is not None and not recipe.strip():
        raise UsageError("--recipe names no file", remedy="leave it out, or give the path of a YAML file")
    return read_spec(
        options={name: value for name, value in typed.items() if value not in (None, ())},
        recipe=None if recipe is None else Path(recipe),
        environ=os.environ,
        host=host,
        point=point,
    )


def read_given_facts(given: Mapping[str, Any], spec: LaunchSpec) -> dict[int, NodeFacts]:
    """The facts that the command line brings, by rank; those of other nodes are left out, with a remark on stderr."""
    if not given["facts"]:
        return {}
    from disagg_run.facts_document import facts_by_rank, read_facts, unmatched
    from disagg_run.input_files import read_bytes

    found: dict[str, NodeFacts] = {}
    for name in given["facts"]:
        for key, facts in read_facts(read_bytes(Path(name), "facts file"), Path(name).name).items():
            if key in found and found[key] != facts:
                raise SpecError(f"two facts files speak of {key!r} and differ", remedy="give the newer one")
            found[key] = facts
    by_rank, left = facts_by_rank(found, spec.nodes)
    if left:
        remark(f"warning: {unmatched(left, ' and '.join(Path(name).name for name in given['facts']))}")
    return by_rank


def read_point(given: Mapping[str, Any]) -> Point | None:
    """The point of a master config that the command line names; None where it names no file.

    Raises UsageError for an entry or point without a file, and SpecError where there is a choice, or no such one.
    """
    if given["master_config"] is None:
        for name in ("entry", "point"):
            if given[name] is not None:
                raise UsageError(f"--{name} is of a master config", remedy="name the file with --master-config")
        return None
    from disagg_run.spec.masterconfig import read_master_config

    entry = read_master_config(Path(given["master_config"])).choose(given["entry"])
    return entry.point(given["point"])
