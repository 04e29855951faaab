"""Lists of GPUs as the variables that choose them hold them: ``0,1,2,3``, ``GPU-8932f937,GPU-…``, ``MIG-…``.

What runtimes make of a list is from torch 2.13.0 (``torch.cuda._parse_visible_devices``, for CUDA and HIP) and NVIDIA's
and AMD's manuals: a negative number ends it, a GPU that stands twice leaves none, anything else that is not understood
ends it in silence, so it is refused here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_NEGATIVE = re.compile(r"-[0-9]+")
_INDEX = re.compile(r"[0-9]+")
_UUID = re.compile(r"(GPU|MIG)-[\w/-]+")


def listed_gpus(text: str, *, blanks: bool) -> tuple[str, ...]:
    """The GPUs that a list shows a process, in its order; () = none.

    ``blanks``: whether they may stand beside commas: CUDA takes them, for HIP and ROCr they end the list. Raises
    ValueError, whose text says what is wrong with which word.
    """
    found: list[str] = []
    for word in text.split(",") if text.strip() else ():
        if word != word.strip() and not blanks:
            raise ValueError(f"{word!r} has a blank, which ends the list for HIP and ROCr")
        word = word.strip()
        if _NEGATIVE.fullmatch(word):
            break
        if not (_INDEX.fullmatch(word) or _UUID.fullmatch(word)):
            raise ValueError(f"{word!r} is neither the index nor the UUID of a GPU")
        found.append(str(int(word)) if word.isdigit() else word.lower())
    if len({word.isdigit() for word in found}) > 1:
        raise ValueError("indexes stand beside UUIDs, of which runtimes read the first kind only")
    for number, word in enumerate(found):
        if same_gpu(word, found[:number]):
            raise ValueError(f"GPU {word} stands twice, for which runtimes show none at all")
    return tuple(found)


def same_gpu(word: str, others: Iterable[str]) -> str:
    """The one of ``others`` that is the GPU ``word`` too, "" = none; a UUID may be cut to its beginning."""
    for other in others:
        if word == other or (not word.isdigit() and (word.startswith(other) or other.startswith(word))):
            return other
    return ""
