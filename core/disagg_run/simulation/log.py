"""A stand-in's log: one write a line, so that lines of several processes on one stream stay whole."""

from __future__ import annotations

import sys


def say(line: str) -> None:
    """Write a line to stdout."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def complain(line: str) -> None:
    """Write a line to stderr."""
    sys.stderr.write(line + "\n")
    sys.stderr.flush()
