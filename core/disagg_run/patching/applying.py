"""Patches applied to an installation: all or nothing, once, whoever else tries at the same time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import attrs

from disagg_run.errors import PatchError
from disagg_run.patching.examining import Examined, examine
from disagg_run.patching.ledger import Ledger, read_ledger
from disagg_run.patching.locating import Site, locate_site
from disagg_run.patching.locking import LOCK_TIMEOUT_S, locked_roots
from disagg_run.patching.manifest import read_manifest
from disagg_run.patching.ordering import in_order, tops_of
from disagg_run.patching.replaceable import check_replaceable
from disagg_run.patching.replacing import recover
from disagg_run.patching.states import PatchesRefused, PatchState, failing
from disagg_run.patching.taking_back import at_rest
from disagg_run.patching.writing import commit, forget
from disagg_run.records import Patch


def find_site(
    patches: Iterable[Patch],
    *,
    target: str | Path | None = None,
    python: str | None = None,
    env: Mapping[str, str] | None = None,
) -> Site:
    """The installation that ``patches`` are for: a directory that holds the packages, or what an interpreter imports.

    ``env``: the environment that the interpreter runs in; None = this process's. Neither ``target`` nor ``python``: the
    first ``python3`` of ``PATH``. Raises PatchError where there is none.
    """
    patches = tuple(patches)
    tops = sorted({top for patch in patches for top in tops_of(patch)})
    distributions = dict.fromkeys(name for patch in patches for name in patch.package)
    return locate_site(tops, distributions, target=target, python=python, env=env)


def check_patches(
    patches: Sequence[Patch], *, target: str | Path | None = None, python: str | None = None
) -> tuple[PatchState, ...]:
    """The state that each patch has or would have (``applicable``); reads only.

    Raises PatchError where the installation is in no state to be patched, PatchesRefused where it cannot be written.
    """
    ordered = in_order(patches)
    found = examine(ordered, find_site(ordered, target=target, python=python))
    if found.unfinished:
        raise _unfinished(found.unfinished[0])
    with failing(found.states):
        _check_replaceable(found)
    return found.states


def apply_patches(
    patches: Sequence[Patch],
    *,
    target: str | Path | None = None,
    python: str | None = None,
    env: Mapping[str, str] | None = None,
    waiver: str = "",
    lock_timeout_s: float = LOCK_TIMEOUT_S,
) -> tuple[PatchState, ...]:
    """Apply ``patches`` to the installation in ``target``, or to what ``python`` imports; the states, in applied order.

    Patches that stand there from before, and that are not among ``patches``, stay, and come last among the states.
    All files are matched before the first is written; where a required patch does not match, nothing is. Many processes
    may call this at once, on hosts that share the file system too: one writes, the others find it done. A change that a
    killed process left half done is finished first, or taken back where that cannot be. ``env``: as ``find_site``.
    ``waiver``: reference under
    which the change of the engine was allowed, for the ledger. ``lock_timeout_s``: seconds to wait for another process.
    Raises PatchesRefused (a PatchError with all ``states``) where a required patch does not match or files cannot be
    written, and PatchError where files were changed by somebody else, or two patches want one place.
    """
    ordered = in_order(patches)
    site = find_site(ordered, target=target, python=python, env=env)
    found = _glance(ordered, site, waiver)
    if found is not None and not found.changes:
        return found.states
    roots = sorted(set(site.roots.values())) if found is None else sorted(change.root for change in found.changes)
    if found is not None and all(map(at_rest, roots)):
        with failing(found.states):
            _check_replaceable(found)  # before a lock file is made
    with failing(found.states if found is not None else ()), locked_roots(roots, lock_timeout_s) as locks:
        recover(roots)
        found = examine(ordered, site, waiver=waiver)
        states = _accepted(found)
        if not {change.root for change in found.changes} <= set(roots):
            raise PatchError("the installation was changed by somebody else just now", remedy="run again")
        _check_replaceable(found)
        for change in found.changes:
            if change.outdated is not None:
                forget(change.root, change.outdated)
        commit([(change.root, change.writes, change.manifest) for change in found.changes], locks)
    return tuple(attrs.evolve(state, state="applied") if state.state == "applicable" else state for state in states)


def ledgers(roots: Iterable[Path]) -> tuple[Ledger, ...]:
    """What the manifests of the given import roots say, for those that have one; reads only."""
    return tuple(each for each in map(read_ledger, sorted(set(roots))) if each.patches or each.problem)


def _glance(ordered: Sequence[Patch], site: Site, waiver: str) -> Examined | None:
    """What is there, seen without a lock, so that it works where nothing can be written; None = it is being changed.

    Whoever writes replaces the manifest before the first file: what was read is whole if no manifest changed meanwhile.
    """
    roots = sorted(set(site.roots.values()))
    before = [read_manifest(root) for root in roots]
    try:
        found = examine(ordered, site, waiver=waiver)
        if found.unfinished:
            return None
        _accepted(found)
    except PatchError:
        if [read_manifest(root) for root in roots] == before:
            raise
        return None
    return found if [read_manifest(root) for root in roots] == before else None


def _accepted(found: Examined) -> tuple[PatchState, ...]:
    bad = [state for state in found.states if not state.good]
    if not bad:
        return found.states
    first = bad[0]
    more = f", nor do {len(bad) - 1} others" if len(bad) > 1 else ""
    on = f" {first.package} {first.version}".rstrip() if first.package else ""
    raise PatchesRefused(
        f"patch {first.id!r} does not match{on}: {first.detail}{more}",
        remedy=f"nothing was changed; {first.remedy or 'leave it out, or use a version that it is made for'}",
        states=found.states,
    )


def _check_replaceable(found: Examined) -> None:
    for change in found.changes:
        check_replaceable(change.root, [write.file for write in change.writes])


def _unfinished(root: Path) -> PatchError:
    return PatchError(
        f"a change of {root} was begun and not finished", remedy="apply or revert the patches again, which finishes it"
    )
