"""Tables that tests fill and the end of the run prints."""

from __future__ import annotations

#: Title -> lines.
TABLES: dict[str, list[str]] = {}
