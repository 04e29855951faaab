"""What ``disagg-run plan`` shows of a master config where one launch is not chosen yet: its entries, or each point."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from disagg_run.cli.output import emit, json_text, one_line
from disagg_run.errors import DisaggError
from disagg_run.plain_text import columns

if TYPE_CHECKING:
    from disagg_run.host import Host
    from disagg_run.spec.masterconfig import MasterConfig
    from disagg_run.spec.masterconfig_entry import Entry
    from disagg_run.spec.masterconfig_point import Point


def list_choice(given: Mapping[str, Any], form: str) -> int | None:
    """List the entries of a master config, or plan every point of one; None where a single launch is asked for.

    Returns the exit code: that of the first point that cannot be planned, else 0.
    """
    if given["master_config"] is None or given["point"] is not None:
        return None
    from disagg_run.spec.masterconfig import read_master_config

    config = read_master_config(Path(given["master_config"]))
    if given["entry"] is None:
        return _entries(config, form)
    entry = config.entry(given["entry"])
    return None if len(entry.points) == 1 else _points(entry, given, form)


def _entries(config: MasterConfig, form: str) -> int:
    rows = [{"entry": e.name, "framework": e.framework, "model": e.model, "points": e.points} for e in config.lines()]
    if form == "json":
        emit(json_text(rows))
        return 0
    head = ("entry", "framework", "model", "points")
    emit(columns([head, *(tuple(map(str, row.values())) for row in rows)]))
    if config.others():
        emit(f"and {config.others()} that are not disaggregated\n")
    return 0


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
    mtp = "+MTP" if point.speculation == "mtp" else ""
    return {
        "isl": point.input_len,
        "osl": point.output_len,
        "concurrency": list(point.concurrency),
        "prefill": f"{point.shapes['prefill']}{mtp}",
        "decode": f"{point.shapes['decode']}{mtp}",
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
