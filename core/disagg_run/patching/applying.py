"""Patches applied to an installation and taken back: all or nothing, once, whoever else tries at the same time."""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import attrs

from disagg_run.errors import PatchError
from disagg_run.patching.editing import carry_out
from disagg_run.patching.examining import Examined, examine
from disagg_run.patching.ledger import Ledger, is_outdated, ledger_line, read_ledger
from disagg_run.patching.locating import Site, locate_site, top_of
from disagg_run.patching.locking import locked
from disagg_run.patching.manifest import LOCK, Applied, Manifest, PatchedFile, read_manifest, sha256
from disagg_run.patching.ordering import files_of, in_order
from disagg_run.patching.replacing import cannot_write, finish
from disagg_run.patching.states import PatchesRefused, PatchState
from disagg_run.patching.writing import FileWrite, backup_of, commit, forget
from disagg_run.records import Patch

#: Seconds that one process waits for another that patches the same installation.
LOCK_TIMEOUT_S = 120.0


def find_site(patches: Iterable[Patch], *, target: str | Path | None = None, python: str | None = None) -> Site:
    """The installation that ``patches`` are for: a directory that holds the packages, or what an interpreter imports.

    Neither: the first ``python3`` of ``PATH``. Raises PatchError where there is none.
    """
    patches = tuple(patches)
    tops = sorted({top_of(name) for patch in patches for name in files_of(patch)})
    distributions = dict.fromkeys(name for patch in patches for name in patch.package)
    return locate_site(tops, distributions, target=target, python=python)


def check_patches(
    patches: Sequence[Patch], *, target: str | Path | None = None, python: str | None = None
) -> tuple[PatchState, ...]:
    """The state that each patch has or would have (``applicable``); reads only.

    Raises PatchError where the installation is in no state to be patched.
    """
    ordered = in_order(patches)
    found = examine(ordered, find_site(ordered, target=target, python=python))
    if found.unfinished:
        raise _unfinished(found.unfinished[0])
    return found.states


def apply_patches(
    patches: Sequence[Patch],
    *,
    target: str | Path | None = None,
    python: str | None = None,
    waiver: str = "",
    lock_timeout_s: float = LOCK_TIMEOUT_S,
) -> tuple[PatchState, ...]:
    """Apply ``patches`` to the installation in ``target``, or to what ``python`` imports; the states, in applied order.

    Patches that stand there from before, and that are not among ``patches``, stay, and come last among the states.
    All files are matched before the first is written; where a required patch does not match, nothing is. Many processes
    may call this at once, on hosts that share the file system too: one writes, the others find it done. A change that a
    killed process left half done is finished first. ``waiver``: reference under which the change of the engine was
    allowed, for the ledger. ``lock_timeout_s``: seconds to wait for another process.
    Raises PatchesRefused (a PatchError with all ``states``) where a required patch does not match, and PatchError where
    files were changed by somebody else or cannot be written, or two patches want one place.
    """
    ordered = in_order(patches)
    site = find_site(ordered, target=target, python=python)
    found = _glance(ordered, site, waiver)
    if found is not None and not found.changes:
        return found.states
    roots = sorted(set(site.roots.values())) if found is None else sorted(change.root for change in found.changes)
    with _locks(roots, lock_timeout_s) as locks:
        for root in roots:
            finish(root)
        found = examine(ordered, site, waiver=waiver)
        states = _accepted(found)
        if not {change.root for change in found.changes} <= set(roots):
            raise PatchError("the installation was changed by somebody else just now", remedy="run again")
        for change in found.changes:
            if change.outdated is not None:
                forget(change.root, change.outdated)
        commit([(change.root, change.writes, change.manifest) for change in found.changes], locks)
    return tuple(attrs.evolve(state, state="applied") if state.state == "applicable" else state for state in states)


def revert_patches(
    roots: Iterable[Path], ids: Sequence[str] = (), *, lock_timeout_s: float = LOCK_TIMEOUT_S
) -> tuple[PatchState, ...]:
    """Take patches back in the given import roots, those named by ``ids`` or all; the files get their bytes back.

    Raises PatchError for an id that is not applied (with the nearest), one that others require, and a file that was
    changed since.
    """
    roots = sorted(set(roots))
    _check_ids(roots, ids)
    states: list[PatchState] = []
    for root in roots:
        manifest = read_manifest(root)
        if not manifest.applied and not manifest.files and manifest.pending is None:
            continue
        with _locks([root], lock_timeout_s) as locks:
            finish(root)
            states += _revert(root, read_manifest(root), ids, locks)
    return tuple(states)


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
        remedy="nothing was changed; leave it out, or use a version that it is made for",
        states=found.states,
    )


def _unfinished(root: Path) -> PatchError:
    return PatchError(
        f"a change of {root} was begun and not finished", remedy="apply or revert the patches again, which finishes it"
    )


@contextlib.contextmanager
def _locks(roots: Sequence[Path], timeout_s: float) -> Iterator[list[int]]:
    with contextlib.ExitStack() as stack:
        handles: list[int] = []
        for root in roots:
            try:
                handle = stack.enter_context(locked(root / LOCK, timeout_s))
            except OSError as error:
                raise cannot_write(error, root) from None
            handles += [handle] if handle is not None else []
        yield handles


def _check_ids(roots: Sequence[Path], ids: Sequence[str]) -> None:
    known: list[str] = []
    for root in roots:
        manifest = read_manifest(root)
        known += [each.patch.id for each in (manifest.pending or manifest).applied + manifest.applied]
    for name in ids:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise PatchError(
                f"patch {name!r} is not applied here",
                remedy=f"{hint}applied are {', '.join(dict.fromkeys(known)) or 'none'}",
            )


def _revert(root: Path, manifest: Manifest, ids: Sequence[str], locks: Sequence[int]) -> list[PatchState]:
    gone = [each for each in manifest.applied if not ids or each.patch.id in ids]
    kept = [each for each in manifest.applied if each not in gone]
    _check_required(kept, gone)
    states = [_reverted(root, manifest, each) for each in gone]
    if is_outdated(root, manifest, {}):
        forget(root, manifest)
        return [attrs.evolve(state, detail="its files had been installed anew already") for state in states]
    originals = {name: backup_of(root / name, file) for name, file in manifest.files.items()}
    patches = in_order([attrs.evolve(each.patch, requires=_among(each.patch.requires, kept)) for each in kept])
    texts = carry_out({name: data.decode() for name, data in originals.items()}, patches).texts
    writes, files = [], {}
    for name, original in originals.items():
        data = texts[name].encode() if patches else original
        if sha256(data) != manifest.files[name].current:
            writes.append(FileWrite(file=name, after=data, original=original))
        if data != original:
            files[name] = PatchedFile(
                original=sha256(original), current=sha256(data), mtime_ns=manifest.files[name].mtime_ns
            )
    commit([(root, writes, Manifest(files=files, applied=tuple(kept)))], locks)
    return states


def _check_required(kept: Sequence[Applied], gone: Sequence[Applied]) -> None:
    names = {each.patch.id for each in gone}
    for each in kept:
        needed = names & set(each.patch.requires)
        if needed:
            raise PatchError(
                f"patch {sorted(needed)[0]!r} cannot be reverted alone: {each.patch.id!r} requires it",
                remedy=f"revert {each.patch.id!r} too",
            )


def _among(names: Iterable[str], applied: Sequence[Applied]) -> tuple[str, ...]:
    return tuple(name for name in names if any(each.patch.id == name for each in applied))


def _reverted(root: Path, manifest: Manifest, each: Applied) -> PatchState:
    lines = [ledger_line(root, name, manifest, each) for name in files_of(each.patch) if name in manifest.files]
    return PatchState(
        id=each.patch.id,
        state="reverted",
        package=each.package,
        version=each.version,
        required=each.patch.required,
        files=[attrs.evolve(line, before=line.after, after=line.before) for line in lines],
        why=each.patch.why,
        upstream=each.patch.upstream,
        waiver=each.waiver,
    )
