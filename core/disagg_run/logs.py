"""Events of a run: constant names with keyword data, as JSON lines in a file and, those that matter, on the console.

On a terminal the console shows them for people, elsewhere as the same JSON lines. Secrets never go into an event.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import sys
from collections.abc import Callable, MutableMapping
from pathlib import Path
from typing import Any

import structlog

Event = MutableMapping[str, Any]


class EventSink:
    """Where rendered events go: all to the file, those from level ``info`` on to the console."""

    def __init__(
        self, path: Path | None, show: Callable[[str], None], *, pretty: bool, lost: Callable[[OSError], None]
    ) -> None:
        self._file = path.open("ab", buffering=0) if path else None
        #: Whether the last line could be written in part alone.
        self._torn = False
        self._show = show
        self._lost = lost
        self._render = structlog.dev.ConsoleRenderer(pad_event_to=24) if pretty else None

    def debug(self, event: Event) -> None:
        """To the file alone."""
        if self._file is None:
            return
        line = (json.dumps(event, default=str) + "\n").encode("ascii")
        try:
            written = self._file.write(b"\n" + line if self._torn else line)
            self._torn = not written or written < len(line)
            if self._torn:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:  # a full disk must not stop what reports a failure
            self._lost(error)

    def info(self, event: Event) -> None:
        """To the file and the console."""
        self.debug(event)
        if self._render is None:
            self._show(json.dumps(event, default=str))
            return
        shown = {**event, "timestamp": str(event.get("timestamp", ""))[11:19]}
        self._show(str(self._render(None, "", shown)))

    warning = error = critical = info

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()


def event_log(
    path: Path | None,
    show: Callable[[str], None],
    *,
    pretty: bool | None = None,
    lost: Callable[[OSError], None] = lambda error: None,
    **bound: Any,
) -> tuple[structlog.typing.FilteringBoundLogger, EventSink]:
    """A logger of events that all carry ``bound``, and its sink, to be closed at the end.

    ``path``: the file for JSON lines, or None. ``show``: puts one line on the console. ``pretty``: None = as stderr
    is a terminal or not. ``lost``: hears of each event that cannot be written to the file. Raises OSError where the
    file cannot be opened.
    """
    sink = EventSink(path, show, pretty=sys.stderr.isatty() if pretty is None else pretty, lost=lost)
    logger = structlog.wrap_logger(
        sink,
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            _whole,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(0),
        **bound,
    )
    return logger, sink


def _whole(logger: Any, method: str, event: Event) -> tuple[tuple[Event], dict[str, Any]]:
    # The sink gets the event itself and renders it once for each place; what and when come first in every line.
    first = {name: event.pop(name) for name in ("timestamp", "level", "event")}
    return ({**first, **event},), {}
