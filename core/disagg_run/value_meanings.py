"""What values of shared settings mean to every engine alike, for ``SharedValue.meaning``."""

from __future__ import annotations

from typing import Any

_FORMATS = {"half": "float16", "float": "float32"}


def number_format(value: Any) -> Any:
    """A ``--dtype``: two formats have a second name, as in PyTorch; none given is ``auto``."""
    return _FORMATS.get(value, value or "auto")


def size(value: Any) -> int | str:
    """The size of a group of ranks: 1 where none is given."""
    text = str(value or 1)
    return int(text) if text.isdecimal() else text
