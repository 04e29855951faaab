"""Standard output and error whose reader may go away meanwhile: a pipe's (``| head``), a terminal's, a full disk's."""

from __future__ import annotations

import os
import sys
from typing import TextIO


def say(text: str) -> None:
    """Lines for stderr; where nobody can get them they are dropped, since what is going on matters more."""
    _put(sys.stderr, 2, text)


def show(text: str) -> None:
    """Lines for stdout that belong to something that goes on, also where nobody can get them."""
    _put(sys.stdout, 1, text)


def flush() -> None:
    """Write what is buffered; never fails."""
    for stream, number in ((sys.stdout, 1), (sys.stderr, 2)):
        try:
            stream.flush()
        except OSError:
            drop(number)


def drop(number: int) -> None:
    """Let what goes to file descriptor ``number`` vanish: the interpreter would try, and complain, at its end."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, number)
    os.close(null)


def _put(stream: TextIO, number: int, text: str) -> None:
    try:
        print(text, file=stream, flush=True)
    except OSError:
        drop(number)
