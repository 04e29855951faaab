"""The text of a source file, or why it has none that can be patched."""

from __future__ import annotations

import attrs

_MARK = b"\xef\xbb\xbf"


@attrs.frozen
class Unreadable:
    """A file that is there and has no text in which an edit could have its place."""

    #: In one clause.
    reason: str


def text_of(data: bytes | None) -> str | Unreadable | None:
    """The text of a source file. As releases have them these are UTF-8 without a mark; nothing else is guessed."""
    if data is None:
        return None
    if not data:
        return Unreadable("it is empty")
    if data.startswith(_MARK):
        return Unreadable("it begins with a byte order mark")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        return Unreadable(f"it is not UTF-8, with byte 0x{data[error.start]:02x} in line {line}")
