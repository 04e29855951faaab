"""Waiting for what a process prints: the proof where a program says something nowhere else."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from disagg_run.errors import GateTimeout
from disagg_run.planning.document import Ready
from disagg_run.running.supervisor import Running

#: Seconds between two looks, and bytes read at each.
_LOOK_S = 0.1
_BLOCK = 1 << 20


class Search:
    """A text in a file that grows; what was searched is not searched again."""

    def __init__(self, path: Path, text: str) -> None:
        self._path = path
        self._text = text.encode()
        self._at = 0
        self._rest = b""

    def found(self) -> bool:
        """Whether the text has come by now."""
        with self._path.open("rb") as file:
            file.seek(self._at)
            while block := file.read(_BLOCK):
                self._at += len(block)
                if self._text in self._rest + block:
                    return True
                # The text may lie across two blocks.
                self._rest = (self._rest + block)[-len(self._text) :]
        return False


async def until_printed(running: Running, ready: Ready) -> None:
    """Wait until ``running`` has printed the text of ``ready``.

    Raises GateTimeout at the probe's deadline, which counts from the process's start, naming what never came.
    """
    search = Search(running.log, ready.target)
    while not search.found():
        if time.monotonic() > running.started + ready.timeout_s:
            raise GateTimeout(
                f"{running.name} has not printed {ready.target!r} within {ready.timeout_s:g} s",
                remedy=f"its log is {running.log}",
            )
        await asyncio.sleep(_LOOK_S)
