"""The end of each process's log: followed for the console at a bounded rate, and read back after a failure.

Processes write to their files themselves, so nothing here can block one, and a flood costs the agent nothing but the
note of how much was left out.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable
from pathlib import Path

from disagg_run.input_files import os_reason

#: Seconds between two looks while lines come and while none do, and bytes shown of one process at each look.
_LOOK_S = 0.25
_QUIET_S = 1.0
_SHOWN = 16384
#: Bytes of a line without an end after which it is shown as it is.
_LONGEST = 4000
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|[\x00-\x08\x0b-\x1f\x7f]")


def plain(line: str) -> str:
    """A line without escape sequences and control characters; of a progress bar, its last state."""
    return _CONTROL.sub("", line.rstrip("\r").rpartition("\r")[2])


def last_lines(path: Path, count: int = 20) -> tuple[str, ...]:
    """The last lines of a log that are not empty."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - 65536))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return ()
    lines = [plain(line) for line in text.split("\n")]
    return tuple(line for line in lines if line.strip())[-count:]


class Tail:
    """One log, as far as it was shown."""

    def __init__(self, name: str, path: Path) -> None:
        self.name = name
        self.path = path
        self._file = path.open("rb", buffering=0)
        self._at = 0
        self._rest = b""

    def lines(self) -> list[str]:
        """What has come since the last look, shortened where it is too much."""
        size = os.fstat(self._file.fileno()).st_size
        if size < self._at:  # somebody emptied the file
            self._at, self._rest = 0, b""
        if size == self._at:
            return []
        shown: list[str] = []
        if size - self._at > _SHOWN:
            skipped = size - self._at - _SHOWN
            shown.append(f"({skipped:,} bytes are not shown here; all is in {self.path})")
            self._at, self._rest = size - _SHOWN, b""
        data = self._rest + os.pread(self._file.fileno(), size - self._at, self._at)
        self._at = size
        *whole, self._rest = data.split(b"\n")
        if len(self._rest) > _LONGEST:
            whole.append(self._rest)
            self._rest = b""
        return shown + [plain(line.decode("utf-8", "replace")) for line in whole]

    def rest(self) -> list[str]:
        """What is left at the end, an unfinished line included."""
        lines = self.lines()
        if self._rest:
            lines.append(plain(self._rest.decode("utf-8", "replace")))
            self._rest = b""
        return lines

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()


class Tails:
    """Follows the logs of this rank's processes and shows each line with its process's name."""

    def __init__(self, show: Callable[[str], None]) -> None:
        self._show = show
        self._tails: list[Tail] = []

    def follow(self, name: str, path: Path) -> None:
        """Show the lines of ``path``, from its beginning, as those of process ``name``."""
        try:
            self._tails.append(Tail(name, path))
        except OSError as error:
            self._unreadable(name, path, error)

    async def run(self) -> None:
        """Look at all logs until cancelled."""
        pause = _LOOK_S
        while True:
            pause = _LOOK_S if self.look() else min(pause * 1.2, _QUIET_S)
            await asyncio.sleep(pause)

    def look(self) -> bool:
        """Show what has come since the last look; whether anything has."""
        shown = [self._print(tail, tail.lines) for tail in tuple(self._tails)]
        return any(shown)

    def close(self) -> None:
        """Show what is left and let go of the files."""
        for tail in tuple(self._tails):
            self._print(tail, tail.rest)
            tail.close()
        self._tails.clear()

    def _print(self, tail: Tail, look: Callable[[], list[str]]) -> bool:
        try:
            lines = look()
        except OSError as error:  # a file system that went away
            self._tails.remove(tail)
            self._unreadable(tail.name, tail.path, error)
            return True
        for line in lines:
            if line.strip():
                self._show(f"[{tail.name}] {line}")
        return bool(lines)

    def _unreadable(self, name: str, path: Path, error: OSError) -> None:
        self._show(f"[{name}] (what it prints is not shown any more: {str(path)!r} cannot be read: {os_reason(error)})")
