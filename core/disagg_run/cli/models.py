"""``disagg-run models``: the models that engines know, with the versions that each row is for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from disagg_run.cli.output import emit, json_text
from disagg_run.plain_text import columns

if TYPE_CHECKING:
    from disagg_run.declarations import ModelRow


@click.command("models")
@click.option("--engine", metavar="NAME", help="engine plugin; default: all of them")
@click.option("--format", "form", type=click.Choice(["table", "json"]), default="table", help="default: table")
def command(engine: str | None, form: str) -> None:
    """List the models that an engine knows: name, engine versions, tensor-parallel sizes, place in the table."""
    from disagg_run.declarations import UNKNOWN_MODEL
    from disagg_run.host import build_host

    host = build_host()
    engines = [engine] if engine is not None else list(host.engines())
    rows = [_row(name, row) for name in engines for row in host.models(name)]
    if form == "json":
        emit(json_text(rows))
        return
    head = ("model", "engine", "versions", "tp prefill/decode", "place")
    emit(columns([head, *(_cells(row) for row in rows)]))
    for name in engines:
        if host.engine(name).any_model:
            waived = f", under --waive {UNKNOWN_MODEL}" if host.models(name) else ""
            emit(f"{name} takes any other model too, with its own defaults{waived}\n")


def _row(engine: str, row: ModelRow) -> dict[str, Any]:
    tp = dict(row.tp)
    return {"model": row.name, "engine": engine, "versions": row.versions, "tp": tp, "place": row.place()}


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    tp = "/".join(str(row["tp"].get(role, "node")) for role in ("prefill", "decode"))
    return row["model"], row["engine"], row["versions"] or "all", tp, row["place"]
