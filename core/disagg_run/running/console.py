"""Lines to stderr from a thread of its own, so that a reader who stops reading never stops the agent."""

from __future__ import annotations

import collections
import os
import select
import threading

#: A write of up to so many bytes to a pipe is not mixed with those of other ranks (PIPE_BUF).
_BLOCK = 4096
_CUT = " …".encode()


class Console:
    """A bounded queue of lines and a thread that writes them; lines beyond the bound are counted and dropped."""

    def __init__(self, descriptor: int = 2, *, prefix: str = "", bound: int = 2000) -> None:
        self._descriptor = descriptor
        self._prefix = prefix
        self._bound = bound
        self._lines: collections.deque[bytes] = collections.deque()
        self._dropped = 0
        self._closing = False
        self._broken = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="console", daemon=True)
        self._thread.start()

    def write(self, line: str) -> None:
        """Queue one line, without its newline; never waits."""
        data = (self._prefix + line).encode("utf-8", "replace")
        if len(data) >= _BLOCK:
            data = data[: _BLOCK - len(_CUT) - 1] + _CUT
        with self._changed:
            if self._broken:
                return
            if len(self._lines) >= self._bound:
                self._dropped += 1
                return
            self._lines.append(data + b"\n")
            self._changed.notify()

    @property
    def writing(self) -> bool:
        """Whether lines are still written: not after the end, nor once the reader is gone."""
        return self._thread.is_alive()

    def close(self, timeout_s: float = 1.0) -> None:
        """Write what is queued, but wait for it no longer than ``timeout_s``."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._lines and not self._closing:
                    self._changed.wait()
                if not self._lines:
                    return
                block = self._next_block()
            if not self._put(block):
                return

    def _next_block(self) -> bytes:
        block = b""
        while self._lines and len(block) + len(self._lines[0]) <= _BLOCK:
            block += self._lines.popleft()
        if self._dropped and not self._lines:
            note = f"{self._prefix}({self._dropped} lines are not shown here: the terminal was too slow)\n"
            self._lines.append(note.encode())
            self._dropped = 0
        return block

    def _put(self, block: bytes) -> bool:
        while block:
            try:
                block = block[os.write(self._descriptor, block) :]
            except BlockingIOError:  # somebody made the terminal non-blocking
                select.select([], [self._descriptor], [])
            except OSError:  # the reader is gone; the files have it all
                with self._changed:
                    self._broken = True
                    self._lines.clear()
                return False
        return True
