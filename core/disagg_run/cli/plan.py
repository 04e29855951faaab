"""``disagg-run plan``: make the plan and print it; nothing is started."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from disagg_run.cli.asking import GroupedHelp, asking_options, read_asked, read_given_facts
from disagg_run.cli.output import cannot_write, emit, remark, write_file
from disagg_run.errors import PlanError, UsageError

if TYPE_CHECKING:
    from disagg_run.host import Host
    from disagg_run.planning.document import LaunchPlan
    from disagg_run.spec.masterconfig_point import Point
    from disagg_run.spec.model import LaunchSpec

#: Format by the suffix of ``--output`` where ``--format`` is not given.
_SUFFIXES = {".json": "json", ".yaml": "yaml", ".yml": "yaml", ".sh": "shell"}


@click.command("plan", cls=GroupedHelp, params=[*asking_options()])
@click.option(
    "--format",
    "form",
    type=click.Choice(["table", "json", "yaml", "shell"]),
    help="default: by the suffix of --output, else table",
)
@click.option("--rank", type=click.IntRange(min=0), metavar="N", help="the rank of a shell script")
@click.option("--output", metavar="PATH", help="file, or directory for the shell scripts of all ranks; default: stdout")
@click.option("--sources", metavar="FILE", help="write there who set which value, as JSON")
def command(form: str | None, rank: int | None, output: str | None, sources: str | None, **given: Any) -> int:
    """Make the plan and print it: what each rank would run. Needs no GPU, node or engine, and starts nothing.

    With --master-config alone: list the file's entries. With --entry of several points and no --point: plan each.
    """
    form = form or _SUFFIXES.get(Path(output).suffix if output else "", "table")
    if rank is not None and form != "shell":
        raise UsageError("--rank is for --format shell", remedy="leave it out: the other formats have all ranks")
    if form == "shell" and rank is None and output is None:
        raise UsageError("--format shell makes one script a rank", remedy="add --rank N, or --output DIR for all ranks")
    if form in ("table", "json") and rank is None and output is None and sources is None:
        from disagg_run.cli.points import list_choice

        code = list_choice(given, form)
        if code is not None:
            return code
    _, plan = plan_asked(given)
    if sources is not None and plan.sources is not None:
        write_file(Path(sources), plan.sources.to_json(plan.digest))
    if form == "shell":
        _shell(plan, rank, output)
    else:
        _put(render(plan, form), output)
    if form != "table":
        show_warnings(plan)
    return 0


def plan_asked(
    given: Mapping[str, Any], *, host: Host | None = None, point: Point | None = None
) -> tuple[LaunchSpec, LaunchPlan]:
    """What is asked by what ``asking_options`` brought, and the plan for it.

    ``host``: None = a fresh one. ``point``: of a master config, where it is not the one that ``given`` names.
    """
    from disagg_run.host import build_host
    from disagg_run.planning.planner import plan

    host = host or build_host()
    spec = read_asked(given, host, point=point)
    catalogues = None
    if given["python"] is not None:
        from disagg_run.cli.installed import as_installed

        spec, catalogues = as_installed(spec, host.engine(spec.engine), given["python"])
    return spec, plan(spec, read_given_facts(given, spec), host=host, catalogues=catalogues)


def render(plan: LaunchPlan, form: str) -> str:
    """The plan as ``table``, ``json`` or ``yaml``."""
    if form == "table":
        from disagg_run.render.table import render_table

        return render_table(plan)
    from disagg_run.render import documents

    if form == "json":
        # Indented for eyes only: json's fast encoder knows no indent, and a plan of 1,024 nodes has megabytes.
        return documents.render_json(plan, indent=1 if sys.stdout.isatty() else None)
    try:
        return documents.render_yaml(plan)
    except UnicodeEncodeError:
        raise PlanError(
            "the plan holds bytes that are no text, and YAML takes only text", remedy="use --format json"
        ) from None


def show_warnings(plan: LaunchPlan) -> None:
    """The plan's warnings on stderr, for forms that do not show them to a reader."""
    for warning in plan.warnings:
        remark(f"warning: {warning.message}" + (f" ({warning.source})" if warning.source else ""))


def _put(text: str, output: str | None) -> None:
    if output is None:
        emit(text)
    else:
        write_file(Path(output), text)


def _shell(plan: LaunchPlan, rank: int | None, output: str | None) -> None:
    from disagg_run.render.shell import render_shell, write_scripts

    if rank is not None:
        if rank >= len(plan.ranks):
            raise UsageError(f"the plan has no rank {rank}", remedy=f"its ranks are 0 to {len(plan.ranks) - 1}")
        _put(render_shell(plan, rank), output)
        return
    directory = Path(output or ".")
    try:
        directory.mkdir(parents=True, exist_ok=True)
        written = write_scripts(plan, directory)
    except OSError as error:
        raise cannot_write(repr(str(directory)), error) from None
    emit("".join(f"{path}\n" for path in written))
