"""``disagg-run patches``: source patches of an installed engine, looked at, tried, applied and taken back by hand.

A launch needs none of this: what its plan carries the agents apply. Exit code 6 says that a patch does not match, or
that the installation is in no state to be patched.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from disagg_run.cli.output import emit, json_text, remark
from disagg_run.errors import PatchError, UsageError
from disagg_run.plain_text import columns
from disagg_run.streams import drop

if TYPE_CHECKING:
    from disagg_run.patching import Ledger, PatchState
    from disagg_run.records import Patch

F = TypeVar("F", bound=Callable[..., Any])


@click.group("patches")
def command() -> None:
    """List, try, apply and revert source patches of an installed engine.

    NAME is a patch or a set of them. The installation is the one that the first python3 of PATH imports, unless
    --python or --target says otherwise. Exit codes: 0 all is in place, fits or is not needed; 2 a wrong command line;
    3 no such patch or plan; 4 a plugin; 6 a patch does not match or cannot be written or taken back, or files, ledger
    or backups are not as they were left.
    """


def _where(function: F) -> F:
    """Options that say which installation is meant."""
    function = click.option("--target", metavar="DIR", help="directory in which the package's own directory lies")(
        function
    )
    return click.option("--python", metavar="EXE", help="interpreter that imports the package")(function)


_form = functools.partial(
    click.option, "--format", "form", type=click.Choice(["table", "json"]), default="table", help="default: table"
)


@command.command("list")
@_form()
def list_command(form: str) -> None:
    """List the patches that the installed plugins offer."""
    rows = _offered()
    if form == "json":
        emit(json_text([{"plugin": plugin, **_summary(patch)} for plugin, patch in rows]))
        return
    table = [
        (patch.id, ", ".join(patch.sets), f"{patch.package[0] if patch.package else ''} {patch.versions}".strip())
        for _, patch in rows
    ]
    lines = columns([("patch", "sets", "for"), *table]).splitlines(keepends=True)
    notes = [f"    {patch.why}\n{_afterwards(patch)}" for _, patch in rows]
    emit("".join([lines[0], *(line + note for line, note in zip(lines[1:], notes, strict=True))]))


@command.command("show")
@click.argument("name")
@click.option("--version", metavar="V", help="show the edits of this package version alone")
@_where
def show_command(name: str, version: str | None, target: str | None, python: str | None) -> None:
    """Show what a patch changes and why; with --target or --python as a diff of the installed files."""
    from disagg_run.cli.patch_diffs import edits_as_diff, installed_diff

    if version and (target or python):
        raise UsageError("--version and an installation are given", remedy="the installation tells its own version")
    patches = _named([name])
    if target or python:
        emit(installed_diff(patches, target=target, python=python))
    else:
        emit("\n".join(_page(patch) + "\n" + edits_as_diff(patch, version) for patch in patches))


@command.command("check")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--plan", "plan_file", metavar="FILE", help="the patches that a plan document carries, instead of NAME")
@click.option("--forbid", is_flag=True, help="fail if any of them is applied or would change a file")
@_where
@_form()
def check_command(
    names: tuple[str, ...], plan_file: str | None, forbid: bool, target: str | None, python: str | None, form: str
) -> None:
    """Say what would become of patches, and write nothing."""
    from disagg_run.patching import check_patches

    patches = _wanted(names, plan_file)
    states = _told(form, lambda: check_patches(patches, target=target, python=python))
    if forbid:
        _refuse_changes(states)
    _refuse_bad(states)


@command.command("apply")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--plan", "plan_file", metavar="FILE", help="the patches that a plan document carries, instead of NAME")
@click.option(
    "--waiver", metavar="TEXT", default="", help="reference under which the engine may be changed; for the ledger"
)
@_where
@_form()
def apply_command(
    names: tuple[str, ...], plan_file: str | None, waiver: str, target: str | None, python: str | None, form: str
) -> None:
    """Apply patches with those that they require, all of them or none."""
    from disagg_run.patching import apply_patches

    patches = _wanted(names, plan_file)
    _told(form, lambda: apply_patches(patches, target=target, python=python, waiver=waiver), change=True)


@command.command("revert")
@click.argument("names", nargs=-1, metavar="[ID]...")
@_where
@_form()
def revert_command(names: tuple[str, ...], target: str | None, python: str | None, form: str) -> None:
    """Take patches back, all that are applied unless IDs are given; the files are byte for byte as before."""
    from disagg_run.cli.patch_stock import taken_back

    states = taken_back(names, target, python)
    _report_change(states, form)
    _refuse_bad(states)


@command.command("status")
@click.option("--expect", type=click.Choice(["none"]), help="fail if any patch is applied")
@_where
@_form()
def status_command(expect: str | None, target: str | None, python: str | None, form: str) -> None:
    """Show the ledger of an installation: which patches it has, why, and what they made of which file."""
    from disagg_run.cli.patch_stock import stock

    found = stock(target, python)
    emit(json_text([_ledger(each) for each in found]) if form == "json" else _ledger_table(found))
    for each in found:
        if each.problem:
            raise PatchError(f"{each.root}: {each.problem}")
        if expect == "none" and each.patches:
            ids = ", ".join(repr(state.id) for state in each.patches)
            raise PatchError(f"{each.root} has the patches {ids}", remedy="revert them: disagg-run patches revert")


def _offered() -> list[tuple[str, Patch]]:
    """All patches of all healthy patch plugins, with the plugin's name."""
    from disagg_run.cli.patch_offers import offers

    return offers()


def _named(names: Sequence[str]) -> tuple[Patch, ...]:
    from disagg_run.patching import named_patches

    return named_patches([patch for _, patch in _offered()], names)


def _wanted(names: tuple[str, ...], plan_file: str | None) -> tuple[Patch, ...]:
    if bool(names) == bool(plan_file):
        raise UsageError(
            "no patch is named" if not names else "patches and a plan are given",
            remedy="give names (disagg-run patches list) or --plan FILE",
        )
    if plan_file:
        from disagg_run.cli.patch_offers import planned

        return planned(Path(plan_file))
    return _named(names)


def _told(form: str, work: Callable[[], Sequence[PatchState]], *, change: bool = False) -> Sequence[PatchState]:
    """The states that ``work`` gives, shown also where it refuses."""
    from disagg_run.patching import PatchesRefused

    report = _report_change if change else _report
    try:
        states = work()
    except PatchesRefused as error:
        if error.states:
            report(error.states, form)
        raise
    report(states, form)
    return states


def _report_change(states: Sequence[PatchState], form: str) -> None:
    """Show what became of a change; where that cannot be written, the exit code still tells of the change alone."""
    try:
        _report(states, form)
    except (BrokenPipeError, UsageError) as error:
        drop(1)
        reason = error.message if isinstance(error, UsageError) else "nobody reads stdout"
        remark(f"the report is lost ({reason}), the exit code is that of the change")


def _report(states: Sequence[PatchState], form: str) -> None:
    if form == "json":
        from disagg_run.planning.document import to_data

        emit(json_text([to_data(state) for state in states]))
        return
    rows = [(state.id, state.state, f"{state.package} {state.version}".strip(), _detail(state)) for state in states]
    emit(columns([("patch", "state", "package", "detail"), *rows]) if rows else "no patch is applied\n")


def _detail(state: PatchState) -> str:
    if state.detail:
        return f"{state.detail}: {state.remedy}" if state.remedy else state.detail
    other = [each.file for each in state.files if each.as_released is False]
    files = ", ".join(each.file for each in state.files)
    return files + (f" (not as released: {', '.join(other)})" if other else "")


def _refuse_bad(states: Sequence[PatchState]) -> None:
    for state in states:
        if not state.good:
            what = "cannot be taken back from" if state.state == "failed" else "does not match"
            where = f" {state.package} {state.version}".rstrip() if state.package else ""
            raise PatchError(f"patch {state.id!r} {what}{where}: {state.detail}", remedy=state.remedy)


def _refuse_changes(states: Sequence[PatchState]) -> None:
    changing = [state for state in states if state.state in ("applicable", "already applied")]
    if changing:
        names = ", ".join(repr(state.id) for state in changing)
        raise PatchError(f"source patches are forbidden here, and {names} change {changing[0].package}")


def _afterwards(patch: Patch) -> str:
    if not patch.fixed_in:
        return ""
    instead = f"the setting {patch.instead}" if patch.instead else "nothing is needed"
    return f"    from {patch.fixed_in} on: {instead}\n"


def _summary(patch: Patch) -> dict[str, Any]:
    from disagg_run.planning.document import to_data

    data: dict[str, Any] = to_data(patch)
    del data["edits"], data["digests"], data["planned_for"], data["waiver"]
    return data


def _page(patch: Patch) -> str:
    rows = [
        ("patch", patch.id),
        ("why", patch.why),
        ("upstream", patch.upstream),
        ("for", f"{' or '.join(patch.package)} {patch.versions}".strip()),
        ("not needed", f"from {patch.fixed_in}: {patch.fixed_by}" if patch.fixed_in else ""),
        ("instead", patch.instead),
        ("requires", ", ".join(patch.requires)),
        ("sets", ", ".join(patch.sets)),
        ("required", "a run stops where it does not match" if patch.required else "a run goes on without it"),
    ]
    return columns([row for row in rows if row[1]])


def _ledger(ledger: Ledger) -> dict[str, Any]:
    from disagg_run.planning.document import to_data

    data: dict[str, Any] = to_data(ledger)
    return data


def _ledger_table(found: Sequence[Ledger]) -> str:
    blocks = []
    for each in found:
        lines = [f"{each.root}\n"] + ([f"  {each.stale}\n"] if each.stale else [])
        for state in each.patches:
            lines.append(
                f"  {state.id}  ({state.package} {state.version})\n    {state.why} {state.upstream}".rstrip() + "\n"
            )
            if state.detail:
                lines.append(f"    {state.detail}\n")
            if state.waiver:
                lines.append(f"    waiver: {state.waiver}\n")
            lines += [f"    {file.file}  {file.before[:12]} -> {file.after[:12]}\n" for file in state.files]
        blocks.append("".join(lines))
    return "\n".join(blocks) or "no patch is applied\n"
