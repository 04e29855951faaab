"""Data to stdout or a file, remarks to stderr."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from disagg_run.errors import UsageError


def emit(text: str) -> None:
    """Data for stdout. What is no text in UTF-8 (a stray byte of an argument) goes out as plan documents hold it."""
    sys.stdout.flush()
    sys.stdout.buffer.write(text.encode("utf-8", "surrogatepass"))
    sys.stdout.buffer.flush()


def write_file(path: Path, text: str) -> None:
    """Data for a file; its directory must exist."""
    try:
        path.write_bytes(text.encode("utf-8", "surrogatepass"))
    except OSError as error:
        raise cannot_write(path, error) from None


def cannot_write(path: Path, error: OSError) -> UsageError:
    """The error for a file or directory that cannot be written."""
    reason = (error.strerror or str(error)).lower()
    return UsageError(f"cannot write {str(path)!r}: {reason}", remedy="give a path that can be written")


def remark(text: str) -> None:
    """One line for stderr."""
    print(f"disagg-run: {one_line(text)}", file=sys.stderr)


def one_line(text: str) -> str:
    """``text`` with line breaks as blanks."""
    return " ".join(text.splitlines())


def columns(rows: Iterable[Sequence[str]], *, indent: str = "") -> str:
    """Rows as aligned columns, the last one as long as it likes; "" for no rows."""
    table = [tuple(row) for row in rows]
    widths = [max(len(cell) for cell in column) for column in zip(*table, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in table]
    return "".join(f"{indent}{line}".rstrip() + "\n" for line in lines)
