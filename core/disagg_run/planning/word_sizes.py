"""Words of commands and variables that are longer than Linux starts a program with."""

from __future__ import annotations

from collections.abc import Iterator

from disagg_run.errors import SpecError
from disagg_run.flags import render
from disagg_run.planning.assembly import ProcessDraft
from disagg_run.sources import CORE_DEFAULT, Source

#: Bytes of one argument or ``NAME=VALUE``, its final NUL left out: MAX_ARG_STRLEN of Linux (32 pages of 4 KiB), beyond
#: which execve fails with E2BIG.
MOST_BYTES = 131072 - 1


def check_words(draft: ProcessDraft) -> None:
    """Refuse a process with an argument or variable that no program can be given; SpecError names who set it."""
    for what, source, text in _long(draft):
        size = len(text.encode("utf-8", "surrogatepass"))
        if size > MOST_BYTES:
            raise SpecError(
                f"{what} of {draft.process.name} ({source}) has {size} bytes, more than the {MOST_BYTES} that Linux"
                " starts a program with",
                remedy="write it shorter, or give a file where the program takes one",
            )


def _long(draft: ProcessDraft) -> Iterator[tuple[str, Source, str]]:
    """What may be too long: a character has 4 bytes at most, and most texts are far shorter."""
    few = MOST_BYTES // 4
    for word in draft.argv:
        if len(word) > few:
            flag = next((each for each in draft.flags if word in render((each,))), None)
            yield (flag.name, flag.source, word) if flag else ("a word of the command", CORE_DEFAULT, word)
    env = draft.env
    for section, texts in (
        ("env", env.env),
        ("env_prepend", {name: ":".join(parts) for name, parts in env.prepend.items()}),
        ("env_append", {name: ":".join(parts) for name, parts in env.append.items()}),
    ):
        for name, value in texts.items():
            if len(name) + 1 + len(value) > few:
                chain = env.provenance.get(f"{section}/{name}")
                yield f"the variable {name}", chain[0][0] if chain else CORE_DEFAULT, f"{name}={value}"
