"""Source patches that the installed engine carries from before, and that a plan does not name."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from disagg_run.errors import PatchError
from disagg_run.patching import Ledger, engine_ledgers
from disagg_run.planning.document import Group

#: For a change that another process makes just now, in seconds; its renames take milliseconds.
PATIENCE_S = 5.0
_POLL_S = 0.05


def check_carried(
    group: Group, python: str | None, warn: Callable[[str], None], env: Mapping[str, str] | None = None
) -> None:
    """Look at the installation of ``python`` (None = of the first ``python3`` of PATH) before the group is patched.

    ``env``: the environment of the group's servers; None = this process's.

    A patch that the group does not name is a warning. Raises PatchError where the plan forbids patches and there are
    some, and where a change was begun and not finished that the group's own patches would not finish.
    """
    named = {patch.id for patch in group.patches}
    revert = "disagg-run patches revert" + (f" --python {python}" if python else "")
    try:
        found = _at_rest(python, env)
    except PatchError as error:
        if group.forbid_patches:
            raise
        warn(f"it cannot be told whether the engine carries source patches: {error}")
        return
    for ledger in found:
        ids = ", ".join(repr(state.id) for state in ledger.patches) or "a patch that was begun"
        if group.forbid_patches:
            raise PatchError(
                f"the plan forbids source patches, and {ledger.root} carries {ids}", remedy=f"revert them: {revert}"
            )
        if ledger.unfinished and not named:
            raise PatchError(f"{ledger.root}: {ledger.problem}", remedy=f"take it back: {revert}")
        others = ", ".join(repr(state.id) for state in ledger.patches if state.id not in named)
        if others:
            warn(
                f"{ledger.root} carries source patches that the plan does not name: {others}; name them with --patch, "
                f"or revert them: {revert}"
            )


def _at_rest(python: str | None, env: Mapping[str, str] | None) -> tuple[Ledger, ...]:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        found = engine_ledgers(python, env)
        if not any(ledger.unfinished for ledger in found) or time.monotonic() >= deadline:
            return found
        time.sleep(_POLL_S)  # polled: who changes an installation tells nobody, and may be on another host
