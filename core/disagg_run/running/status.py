"""What a run directory tells of its run: how far it is, what runs, how it ended."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from disagg_run.errors import UsageError
from disagg_run.running import proctree
from disagg_run.running.outcome import Failure
from disagg_run.running.report import describe
from disagg_run.running.rundir import PLAN, RunDir, culprit_of


def read_status(path: Path) -> dict[str, Any]:
    """The run of a run directory as plain data.

    ``state``: ``starting``, ``serving``, ``finished``, ``failed``, or ``vanished`` where rank 0's agent is gone without
    a word. Raises UsageError where ``path`` is no run directory.
    """
    run_dir = RunDir(path=path)
    try:
        data: dict[str, Any] = json.loads(run_dir.run.read_text(encoding="utf-8"))
        if not isinstance(data, dict) or not {"state", "agents", "processes"} <= data.keys():
            raise ValueError("no run document")
    except (OSError, ValueError):
        if not (path / PLAN).is_file() and not list(path.glob("result.rank*.json")):
            raise UsageError(
                f"{str(path)!r} is no run directory", remedy="name the one that the run printed when it started"
            ) from None
        data = {"state": "finished" if run_dir.ended_ranks() else "starting", "agents": {}, "processes": {}}
    culprit = culprit_of(run_dir)
    if culprit is not None:
        data["state"] = "failed"
    elif data["state"] in ("starting", "serving") and _agent_is_gone(data["agents"].get("0")):
        data["state"] = "vanished"
    return {**data, "culprit": culprit.to_data() if culprit else None, "run_dir": str(path)}


def _agent_is_gone(mark: Mapping[str, Any] | None) -> bool:
    """Whether an agent of this host does not run any more; unknown counts as running."""
    if mark is None or mark.get("host") != socket.gethostname():
        return False
    stat = proctree.read(int(mark["pid"]))
    return stat is None or stat.start != mark["start"] or not stat.alive


def status_text(data: Mapping[str, Any]) -> str:
    """The status for people."""
    if data["culprit"]:
        head = describe(Failure.from_data(data["culprit"]), Path(data["run_dir"]))
    else:
        url = f" at {data['url']}" if data.get("url") else ""
        head = [f"{data['state']}{url}"]
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(data["started"])) if data.get("started") else "unknown"
    rows = [("rank", "process", "stage", "pid")]
    for name, process in data["processes"].items():
        stage = process.get("exit") or process["stage"]
        rows.append((str(process["rank"]), name, stage, str(process.get("pid", "-"))))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    table = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([*head, f"started {since}", *(table if len(rows) > 1 else [])]) + "\n"
