"""Data to stdout or a file, remarks to stderr."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from disagg_run.errors import UsageError
from disagg_run.input_files import os_reason


def emit(text: str) -> None:
    """Data for stdout."""
    try:
        sys.stdout.flush()
        sys.stdout.buffer.write(_encoded(text))
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        close_stdout()
        raise cannot_write("stdout", error) from None


def close_stdout() -> None:
    """Let what could not be written go: the interpreter would try, and complain, once more at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


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
    print(f"disagg-run: {one_line(text)}", file=sys.stderr)


def one_line(text: str) -> str:
    """``text`` with line breaks as blanks."""
    return " ".join(text.splitlines())
