"""What became of each patch: named states, the ledger of changed files, and the error that carries them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Literal

import attrs

from disagg_run.errors import PatchError
from disagg_run.spec.model import as_tuple

State = Literal["applied", "already applied", "applicable", "not needed", "does not match", "failed", "reverted"]


@attrs.frozen(kw_only=True)
class FileChange:
    """One line of the ledger: what a patch, with all others on it, made of a file."""

    #: File, relative to the import root.
    file: str
    #: Where it lies on this node.
    path: str
    #: SHA-256 of the unpatched file, in hex.
    before: str
    #: SHA-256 of the file with all patches of the ledger, in hex.
    after: str
    #: Whether the unpatched file is the release's own; None = its digest is not known.
    as_released: bool | None = None


@attrs.frozen(kw_only=True)
class PatchState:
    """One patch on one installation."""

    id: str
    #: ``applied`` (by this call), ``already applied``, ``applicable`` (a check found that it fits), ``not needed``,
    #: ``does not match``, ``failed``, ``reverted``.
    state: State
    #: Why this state, in one clause.
    detail: str = ""
    #: What to do about it; "" = nothing in particular.
    remedy: str = ""
    #: Installed distribution that it belongs to, and its version; "" = none was found.
    package: str = ""
    version: str = ""
    #: Whether a run stops where it does not match.
    required: bool = True
    #: The files that it changes.
    files: tuple[FileChange, ...] = attrs.field(default=(), converter=as_tuple)
    #: Reason and upstream link, repeated here so that the states alone are a ledger.
    why: str = ""
    upstream: str = ""
    #: Reference of the waiver under which the engine was changed; "" = none was given.
    waiver: str = ""

    @property
    def good(self) -> bool:
        """Whether a run may go on: the patch is in place, not needed, or was optional."""
        return self.state in ("applied", "already applied", "applicable", "not needed", "reverted") or (
            self.state == "does not match" and not self.required
        )


class PatchesRefused(PatchError):
    """At least one patch stops the run: it does not match, or could not be written. ``states`` has all of them."""

    def __init__(self, message: str, *, remedy: str = "", states: Iterable[PatchState] = ()) -> None:
        super().__init__(message, remedy=remedy)
        self.states = tuple(states)


@contextlib.contextmanager
def failing(states: Iterable[PatchState]) -> Iterator[None]:
    """Where something keeps patches from being written: PatchesRefused, with ``failed`` for those that would be."""
    try:
        yield
    except PatchesRefused:
        raise
    except PatchError as error:
        told = [
            attrs.evolve(state, state="failed", detail=error.message, remedy=error.remedy)
            if state.state == "applicable"
            else state
            for state in states
        ]
        raise PatchesRefused(error.message, remedy=error.remedy, states=told) from None
