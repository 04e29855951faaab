"""The bare form, ``disagg-run …`` without a command: make the plan and launch it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from disagg_run.cli.output import emit, remark
from disagg_run.cli.plan import make_plan, render

#: Texts of the contract's ``DRY_RUN`` that ask for it.
_YES = ("1", "true", "yes")


def launch(given: Mapping[str, Any]) -> int:
    """Plan, print the plan, and launch it unless only the plan is asked for; returns the exit code."""
    plan = make_plan(given)
    emit(render(plan, "table"))
    if given["dry_run"]:
        return 0
    if os.environ.get("DRY_RUN", "").lower() in _YES:
        remark("nothing is started: the environment says DRY_RUN")
        return 0
    from disagg_run.running.launch import LaunchOptions, run

    run_dir, token_file = (None if given[name] is None else Path(given[name]) for name in ("run_dir", "token_file"))
    return run(plan, LaunchOptions(smoke=given["smoke"], run_dir=run_dir, token_file=token_file))
