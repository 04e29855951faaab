"""Files that a user names: read, or refused in one line with the system's own words."""

from __future__ import annotations

from pathlib import Path

from disagg_run.errors import SpecError


def os_reason(error: OSError) -> str:
    """Why the system refused, as the end of a sentence: ``no such file or directory``."""
    return (error.strerror or str(error)).lower()


def read_bytes(path: Path, what: str) -> bytes:
    """The bytes of a file; ``what`` names its kind in the SpecError where it cannot be read: ``run file``."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise SpecError(f"the {what} {str(path)!r} cannot be read: {os_reason(error)}") from None


def read_text(path: Path, what: str) -> str:
    """The UTF-8 text of a file, without a byte-order mark; SpecError where it cannot be read or is none."""
    try:
        return read_bytes(path, what).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SpecError(f"the {what} {str(path)!r} is no UTF-8 text: {error.reason} at byte {error.start}") from None
