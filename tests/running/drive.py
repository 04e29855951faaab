"""Runs a plan file as a program of its own: ``drive.py PLAN RUN_DIR [field=value …]`` of LaunchOptions and Timing."""

from __future__ import annotations

import sys
from pathlib import Path

import attrs

from disagg_run.planning.document import LaunchPlan
from disagg_run.running.launch import LaunchOptions, run
from disagg_run.running.timing import Timing


def main() -> int:
    plan_file, run_dir, *settings = sys.argv[1:]
    named = {name: float(value) for name, _, value in (text.partition("=") for text in settings)}
    timing = {field.name: named[field.name] for field in attrs.fields(Timing) if field.name in named}
    smoke = int(named["smoke"]) if "smoke" in named else None
    options = LaunchOptions(smoke=smoke, run_dir=Path(run_dir), timing=Timing(**timing))
    return run(LaunchPlan.from_json(Path(plan_file).read_text()), options)


if __name__ == "__main__":
    sys.exit(main())
