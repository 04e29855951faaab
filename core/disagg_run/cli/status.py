"""``disagg-run status``: what a run directory tells of its run."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("status")
@click.argument("run_dir", type=click.Path(path_type=Path))
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", help="text or json")
def command(run_dir: Path, form: str) -> int:
    """Say what runs in RUN_DIR, how far it is, or how it ended."""
    from disagg_run.cli.output import emit, json_text
    from disagg_run.running.status import read_status, status_text

    data = read_status(run_dir)
    emit(json_text(data) if form == "json" else status_text(data))
    return 0
