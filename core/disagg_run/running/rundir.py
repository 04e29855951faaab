"""The run directory: plan, run.json, events and logs of every rank; kept after success and after failure."""

from __future__ import annotations

import json
import os
import re
import secrets
import time
from collections.abc import Mapping
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from disagg_run.errors import RunError
from disagg_run.input_files import os_reason
from disagg_run.running.outcome import AGENT, GUARDIAN, Failure
from disagg_run.running.room import writing

if TYPE_CHECKING:
    from disagg_run.planning.document import LaunchPlan

PLAN, RUN = "plan.json", "run.json"
_RESULT = re.compile(r"result\.rank(\d+)\.json")


@attrs.frozen(kw_only=True)
class RunDir:
    """The files of one run."""

    path: Path

    @property
    def plan(self) -> Path:
        """The plan document."""
        return self.path / PLAN

    @property
    def run(self) -> Path:
        """What is running: written by rank 0's agent."""
        return self.path / RUN

    @property
    def logs(self) -> Path:
        """Directory of the processes' logs."""
        return self.path / "logs"

    def events(self, rank: int) -> Path:
        """Events of a rank, as JSON lines."""
        return self.path / f"events.rank{rank}.jsonl"

    def result(self, rank: int) -> Path:
        """How the run ended as a rank saw it; absent while it runs."""
        return self.path / f"result.rank{rank}.json"

    @property
    def smoke(self) -> Path:
        """The smoke test's figures."""
        return self.path / "smoke.json"

    def make(self) -> None:
        """Create the directories; RunError where that cannot be."""
        try:
            self.logs.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunError(
                f"the run directory {str(self.path)!r} cannot be made: {os_reason(error)}",
                remedy="name another with --run-dir",
            ) from None

    def claim(self, plan: bytes) -> None:
        """Create the directories for a new run and write its plan; RunError where they hold a run already."""
        self.make()
        with writing(self.plan, "the plan"):
            try:
                file = self.plan.open("xb", buffering=0)  # of two runs that begin at once, one creates it
            except FileExistsError:
                raise RunError(
                    f"the run directory {str(self.path)!r} already holds a run", remedy="name another with --run-dir"
                ) from None
            with file:
                _write_whole(file, plan, self.plan)

    def ended_ranks(self) -> list[int]:
        """The ranks that wrote down how the run ended."""
        found = (_RESULT.fullmatch(each.name) for each in self.path.glob("result.rank*.json"))
        return sorted(int(match[1]) for match in found if match)

    def culprit(self, rank: int) -> Failure | None:
        """The failure that a rank wrote down; None where it wrote none."""
        try:
            data = json.loads(self.result(rank).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return Failure.from_data(data["culprit"]) if data.get("culprit") else None


def culprit_of(run_dir: RunDir) -> Failure | None:
    """What failed first of all that the ranks wrote down, as its own rank saw it where that one knows more."""
    known = [culprit for culprit in map(run_dir.culprit, run_dir.ended_ranks()) if culprit is not None]
    if not known:
        return None
    first = min(known, key=lambda culprit: culprit.time)
    own = run_dir.culprit(first.rank)
    return own if own is not None and _blamed(own) == _blamed(first) else first


def _blamed(failure: Failure) -> tuple[int, str]:
    """Rank and process; to others the death of a guardian is that of its agent."""
    return failure.rank, AGENT if failure.process == GUARDIAN else failure.process


def new_id() -> str:
    """A run id of six hexadecimal digits."""
    return secrets.token_hex(3)


def default_path(plan: LaunchPlan, run_id: str) -> Path:
    """``runs/<time>-<engine>-<id>`` under the current directory."""
    return Path.cwd() / "runs" / f"{time.strftime('%Y%m%dT%H%M%S')}-{plan.engine}-{run_id}"


def write_json(path: Path, data: Mapping[str, Any]) -> None:
    """Write ``data`` so that a reader finds the old file or the new one, whole."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with temporary.open("wb", buffering=0) as file:
        _write_whole(file, (json.dumps(data, indent=1) + "\n").encode("ascii"), temporary)
    temporary.replace(path)


def _write_whole(file: FileIO, data: bytes, path: Path) -> None:
    """Write all of ``data``, or leave no file."""
    try:
        while data:
            data = data[file.write(data) :]
    except OSError:
        path.unlink(missing_ok=True)
        raise


def write_result(run_dir: RunDir, rank: int, culprit: Failure | None, **more: Any) -> None:
    """Write how the run ended for ``rank``."""
    exit_code = culprit.exit_code if culprit else 0
    data = {"rank": rank, "exit_code": exit_code, "culprit": culprit.to_data() if culprit else None, **more}
    write_json(run_dir.result(rank), {**data, "ended": time.time()})
