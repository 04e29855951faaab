"""Waiting for what a process prints: the proof where a program says something nowhere else."""

from __future__ import annotations

import asyncio
import time
from typing import BinaryIO

from disagg_run.errors import GateTimeout, RunError
from disagg_run.input_files import os_reason
from disagg_run.planning.document import Ready
from disagg_run.running.room import remedy
from disagg_run.running.supervisor import Running

#: Seconds between two looks, and bytes read at each.
_LOOK_S = 0.1
_BLOCK = 1 << 20


class Search:
    """A text in a file that grows; what was searched is not searched again."""

    def __init__(self, file: BinaryIO, text: str) -> None:
        self._file = file
        self._text = text.encode()
        self._rest = b""

    def found(self) -> bool:
        """Whether the text has come by now."""
        while block := self._file.read(_BLOCK):
            if self._text in self._rest + block:
                return True
            # The text may lie across two blocks.
            self._rest = (self._rest + block)[-len(self._text) :]
        return False


async def until_printed(running: Running, ready: Ready) -> None:
    """Wait until ``running`` has printed the text of ``ready``.

    Raises GateTimeout at the probe's deadline, which counts from the process's start, naming what never came, and
    RunError where its log cannot be read.
    """
    try:
        with running.log.open("rb", buffering=0) as file:
            search = Search(file, ready.target)
            while not search.found():
                if time.monotonic() > running.started + ready.timeout_s:
                    raise GateTimeout(
                        f"{running.name} has not printed {ready.target!r} within {ready.timeout_s:g} s",
                        remedy=f"its log is {running.log}",
                    )
                await asyncio.sleep(_LOOK_S)
    except OSError as error:
        raise RunError(
            f"the log of {running.name}, {str(running.log)!r}, cannot be read: {os_reason(error)}", remedy=remedy(error)
        ) from None
