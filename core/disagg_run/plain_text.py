"""Text for people: aligned columns, and nothing that a terminal would act on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def columns(rows: Iterable[Sequence[str]], *, indent: str = "") -> str:
    """Rows as aligned columns, the last one as long as it likes; "" for no rows."""
    table = [tuple(row) for row in rows]
    widths = [max(len(cell) for cell in column) for column in zip(*table, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in table]
    return "".join(f"{indent}{line}".rstrip() + "\n" for line in lines)


def listed(names: Sequence[str], most: int = 12) -> str:
    """``a, b and 3 more``: names as part of a sentence, the first ``most`` of them."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def printable(text: str) -> str:
    """``text`` on one line: a control character, which would break a layout or act on a terminal, as its escape."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
