"""What ``disagg-run plan`` shows of a master config where one launch is not chosen yet: its entries, or each point."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from disagg_run.cli.asking import asking_options, read_asked
from disagg_run.cli.output import emit, json_text, one_line, remark
from disagg_run.errors import DisaggError, UsageError
from disagg_run.plain_text import columns, listed

if TYPE_CHECKING:
    from disagg_run.host import Host
    from disagg_run.spec.masterconfig import MasterConfig
    from disagg_run.spec.masterconfig_entry import Entry
    from disagg_run.spec.masterconfig_point import Point


def list_choice(given: Mapping[str, Any], form: str) -> int | None:
    """List the entries of a master config, or plan every point of one; None where a single launch is asked for.

    Returns the exit code: that of the first entry that cannot be read or point that cannot be planned, else 0. Raises
    UsageError for options that do not go with a list.
    """
    if given["master_config"] is None or given["point"] is not None:
        return None
    if given["recipe"] is not None:
        raise UsageError(
            "--recipe and --master-config both say what to run",
            remedy="use one, and give what it leaves open as options",
        )
    from disagg_run.spec.environment import RECIPE
    from disagg_run.spec.masterconfig import read_master_config

    if os.environ.get(RECIPE):
        raise UsageError(
            f"environment variable {RECIPE} and --master-config both say what to run",
            remedy="use one, and give what it leaves open as options",
        )
    config = read_master_config(Path(given["master_config"]))
    if given["entry"] is None:
        _refuse_options(given)
        return _entries(config, given, form)
    entry = config.entry(given["entry"])
    return None if len(entry.points) == 1 else _points(entry, given, form)


def _refuse_options(given: Mapping[str, Any]) -> None:
    """Refuse options that say what to plan: the list of entries would not show what came of them."""
    for parameter in asking_options():
        value = given.get(parameter.name or "")
        if parameter.name != "master_config" and value not in (None, ()):
            raise UsageError(
                f"{parameter.opts[0]} says what to plan, and a list of a master config's entries plans none",
                remedy="name an entry with --entry, or leave it out",
            )


def _entries(config: MasterConfig, given: Mapping[str, Any], form: str) -> int:
    from disagg_run.host import build_host

    host, code = build_host(), 0
    rows: list[dict[str, Any]] = []
    for line in config.lines():
        row: dict[str, Any] = {"entry": line.name, "framework": line.framework, "model": line.model, "points": None}
        try:
            points = config.entry(line.name).points
            row["points"] = len(points)
            # All but the plan itself: that of every point of a large file takes long, and --entry makes it.
            for point in points:
                read_asked(given, host, point=point)
        except DisaggError as error:
            row["error"] = one_line(str(error))
            code = code or error.exit_code
        rows.append(row)
    others = config.others()
    skipped = f"{len(others)} that do not say disagg: true: {listed(others)}" if others else ""
    if form == "json":
        emit(json_text(rows))
        if skipped:
            remark(f"left out {skipped}")
        return code
    emit(columns([("entry", "framework", "model", "points"), *map(_entry_cells, rows)]))
    if skipped:
        emit(f"and {skipped}\n")
    return code


def _entry_cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    points = "-" if row["points"] is None else str(row["points"])
    error = f"  error: {row['error']}" if "error" in row else ""
    return row["entry"], row["framework"], row["model"], f"{points}{error}"


def _points(entry: Entry, given: Mapping[str, Any], form: str) -> int:
    from disagg_run.host import build_host

    host, code = build_host(), 0
    rows: list[dict[str, Any]] = []
    for point in entry.points:
        row: dict[str, Any] = {"point": point.number, "scenario": point.scenario, **_shown(point)}
        try:
            row |= _planned(point, given, host)
        except DisaggError as error:
            row["error"] = one_line(str(error))
            code = code or error.exit_code
        rows.append(row)
    if form == "json":
        emit(json_text(rows))
    else:
        head = ("point", "isl/osl", "concurrency", "prefill", "decode", "nodes", "plan")
        emit(columns([head, *map(_cells, rows)]))
    return code


def _shown(point: Point) -> dict[str, Any]:
    return {
        "isl": point.input_len,
        "osl": point.output_len,
        "concurrency": list(point.concurrency),
        "prefill": point.shown("prefill"),
        "decode": point.shown("decode"),
    }


def _planned(point: Point, given: Mapping[str, Any], host: Host) -> dict[str, Any]:
    from disagg_run.cli.plan import plan_asked

    _, made = plan_asked(given, host=host, point=point)
    return {"nodes": len(made.ranks), "digest": made.digest, "warnings": len(made.warnings)}


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    warned = f", {row['warnings']} warning{'s' if row['warnings'] > 1 else ''}" if row.get("warnings") else ""
    return (
        str(row["point"]),
        f"{row['isl']}/{row['osl']}",
        "x".join(map(str, row["concurrency"])),
        row["prefill"],
        row["decode"],
        str(row.get("nodes", "-")),
        f"error: {row['error']}" if "error" in row else f"{row['digest'][:19]}{warned}",
    )
