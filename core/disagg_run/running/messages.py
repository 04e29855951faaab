"""What agents say to each other: one JSON object a line, of bounded length."""

from __future__ import annotations

import asyncio
import json
from typing import Any

#: Longest line, in bytes; a failure with 20 cut lines has at most a quarter of it.
LIMIT = 64 * 1024

Message = dict[str, Any]


def encode(message: Message) -> bytes:
    """The line for ``message``."""
    return json.dumps(message, separators=(",", ":")).encode("ascii") + b"\n"


async def receive(reader: asyncio.StreamReader) -> Message | None:
    """The next message; None at the end of the connection, and for anything that is no message."""
    try:
        line = await reader.readline()
    except (ValueError, OSError):  # a line beyond the limit; a reset
        return None
    if not line.endswith(b"\n"):
        return None
    try:
        message = json.loads(line)
    except ValueError:
        return None
    return message if isinstance(message, dict) else None
