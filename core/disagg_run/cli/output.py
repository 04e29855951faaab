"""Data to stdout or a file, remarks to stderr."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from disagg_run.errors import UsageError
from disagg_run.input_files import os_reason
from disagg_run.streams import drop, say


def emit(text: str) -> None:
    """Data for stdout."""
    try:
        sys.stdout.flush()
        sys.stdout.buffer.write(_encoded(text))
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        drop(1)
        raise cannot_write("stdout", error) from None


def write_file(path: Path, text: str) -> None:
    """Data for a file; its directory must exist."""
    try:
        path.write_bytes(_encoded(text))
    except OSError as error:
        raise cannot_write(repr(str(path)), error) from None


def _encoded(text: str) -> bytes:
    # Arguments and variables may hold bytes that are no text: they go out as they came in. In a JSON document they are
    # surrogates, which is how plan documents are read.
    try:
        return text.encode("utf-8", "surrogatepass" if text.startswith("{") else "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")


def cannot_write(what: str, error: OSError) -> UsageError:
    """The error for output that cannot be written."""
    return UsageError(f"cannot write {what}: {os_reason(error)}")


def json_text(data: Any) -> str:
    """A JSON document for stdout, with line breaks."""
    return json.dumps(data, ensure_ascii=False, indent=1) + "\n"


def remark(text: str) -> None:
    """One line for stderr."""
    say(f"disagg-run: {one_line(text)}")


def one_line(text: str) -> str:
    """``text`` with line breaks as blanks."""
    return " ".join(text.splitlines())
