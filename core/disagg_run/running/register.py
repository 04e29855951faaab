"""run.json: what rank 0 knows of every agent and process, written so that a reader never finds half of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any

from disagg_run.running.gates import STAGES
from disagg_run.running.rundir import RunDir, write_json
from disagg_run.running.share import Share

#: Seconds in which changes are gathered before the file is written.
_GATHER_S = 0.2


class Register:
    """Keeps ``run.json`` up to date; ``lost`` hears of each time that this cannot be."""

    def __init__(self, share: Share, run_dir: RunDir, run_id: str, lost: Callable[[OSError], None]) -> None:
        self._path = run_dir.run
        self._lost = lost
        self._timer: asyncio.TimerHandle | None = None
        self._data: dict[str, Any] = {
            "schema": 1,
            "run_id": run_id,
            "plan_digest": share.digest,
            "engine": share.engine,
            "ranks": share.ranks,
            "star": "",
            "started": time.time(),
            "state": "starting",
            "agents": {},
            "processes": {
                name: {"rank": brief.rank, "kind": brief.kind, "stage": STAGES[0]}
                for name, brief in share.roster.items()
            },
        }

    def set(self, **values: Any) -> None:
        """Change fields of the whole run, in the file too."""
        self._data.update(values)
        self.write()

    def agent(self, rank: int, mark: Mapping[str, Any]) -> None:
        """Record a rank's agent."""
        self._data["agents"][str(rank)] = dict(mark)
        self._soon()

    def state(self, state: Mapping[str, Any]) -> None:
        """Record how far a process has come."""
        entry = self._data["processes"].get(state.get("process"))
        if entry is not None:
            entry.update({key: value for key, value in state.items() if key not in ("process", "rank")})
            self._soon()

    def write(self) -> None:
        """Write the file now."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        try:
            write_json(self._path, self._data)
        except OSError as error:  # a full disk must not stop the run; the next change tries again
            self._lost(error)

    def _soon(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_GATHER_S, self.write)
