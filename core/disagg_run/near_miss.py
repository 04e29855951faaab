"""Near misses: what somebody may have meant who wrote a name that is not there."""

from __future__ import annotations

from collections.abc import Iterable

#: Likeness from 0 to 1 that a name must have, where a caller asks for no other.
CUTOFF = 0.6


def nearest(word: str, known: Iterable[str], *, cutoff: float = CUTOFF) -> str | None:
    """The one of ``known`` that is most like ``word``; None where none is ``cutoff`` (0 to 1) like it."""
    import difflib  # imported here: most commands never meet an unknown name

    names = list(known)
    # Names that differ in case alone are the nearest of all, which difflib does not see.
    same = [name for name in names if name.casefold() == word.casefold()]
    return next(iter(same or difflib.get_close_matches(word, names, 1, cutoff)), None)


def did_you_mean(word: str, known: Iterable[str], *, cutoff: float = CUTOFF) -> str:
    """``did you mean 'x'?`` for the nearest of ``known``; "" where none is near."""
    near = nearest(word, known, cutoff=cutoff)
    return "" if near is None else f"did you mean {near!r}?"
