"""Patches that stand in an installation and in no ledger: it was removed, or somebody else put them in."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import attrs

from disagg_run.errors import PatchError
from disagg_run.patching.candidates import Candidate, concerned, state_of
from disagg_run.patching.ledger import Ledger, read_ledger
from disagg_run.patching.locating import Site
from disagg_run.patching.manifest import BACKUP_SUFFIX, Manifest, read_manifest
from disagg_run.patching.new_files import beside
from disagg_run.patching.ordering import files_of, in_order
from disagg_run.patching.originals import original_bytes
from disagg_run.patching.plain_files import digest_of, has_digest
from disagg_run.patching.reinstalled import manifest_in_force
from disagg_run.patching.standing import Texts, standing_in
from disagg_run.patching.states import PatchState
from disagg_run.patching.texts import Unreadable, text_of
from disagg_run.patching.traces import lost_record, reinstall
from disagg_run.records import Patch


def take_stock(patches: Iterable[Patch], site: Site, roots: Iterable[Path]) -> tuple[Ledger, ...]:
    """What stands in the given import roots: by their ledgers, and those of ``patches`` that no ledger lists.

    For roots that have either, or a ledger of files that are no more; reads only. Raises PatchError for a ledger that
    cannot be read.
    """
    patches = tuple(patches)
    found = (_stock(patches, site, root) for root in sorted(set(roots)))
    return tuple(each for each in found if each.patches or each.problem or each.stale)


def _stock(patches: Sequence[Patch], site: Site, root: Path) -> Ledger:
    ledger = read_ledger(root)
    if ledger.problem:
        return ledger  # nothing can be said of files whose backups are gone or that are being changed
    states = unrecorded(patches, site, root)
    problem = leftover = ""
    if states:
        first = states[0]
        problem = f"patched with {first.id!r}, but {first.detail}: {first.remedy}"
    else:
        leftover = _stray_backup(patches, site, root)
    return attrs.evolve(ledger, patches=(*ledger.patches, *states), problem=problem or leftover)


def unrecorded(patches: Iterable[Patch], site: Site, root: Path) -> tuple[PatchState, ...]:
    """The states of those of ``patches`` that stand in an import root and that its ledger does not list."""
    manifest = manifest_in_force(root)
    if manifest.pending is not None:
        return ()  # what is being changed is not what it will be
    listed = {each.patch.id for each in manifest.applied}
    here = _candidates(patches, site, root)
    standing = _standing({name: each.patch for name, each in here.items() if name not in listed}, root, manifest)
    states = []
    for name in standing:
        each = here[name]
        detail = lost_record(root, files_of(each.patch), read_manifest(root))
        state = state_of(each.patch, "already applied", detail, each.package, each.version)
        states.append(attrs.evolve(state, remedy=reinstall(each.package, each.version)))
    return tuple(states)


def _candidates(patches: Iterable[Patch], site: Site, root: Path) -> dict[str, Candidate]:
    """The patches that are for what is installed in an import root, by id; of two of one id the first."""
    found: dict[str, Candidate] = {}
    for patch in patches:
        try:
            each = concerned(patch, site)
        except PatchError:
            continue  # its files belong to two installations: it is in neither as it should be
        if isinstance(each, Candidate) and each.root == root:
            found.setdefault(patch.id, each)
    return found


def _standing(patches: dict[str, Patch], root: Path, manifest: Manifest) -> Sequence[str]:
    """The ids of those of ``patches`` whose every edit stands in the files."""
    known = [
        attrs.evolve(patch, requires=[name for name in patch.requires if name in patches]) for patch in patches.values()
    ]
    try:
        ordered = in_order(known)
    except PatchError:
        return ()  # they require each other in a circle, so that none was ever applied
    names = dict.fromkeys(name for patch in ordered for name in files_of(patch))
    texts: Texts = {name: _text(root, name, manifest) for name in names}
    return standing_in(texts, ordered)


def _text(root: Path, name: str, manifest: Manifest) -> str | Unreadable | None:
    try:
        return text_of(original_bytes(root, name, manifest))
    except PatchError:
        return None  # no patch can stand there; whoever patches or reverts that file hears of it


def _stray_backup(patches: Iterable[Patch], site: Site, root: Path) -> str:
    """A backup that no ledger lists beside a file that is another: patched in a way that none of ``patches`` does."""
    listed = read_manifest(root).files
    for each in _candidates(patches, site, root).values():
        for name in files_of(each.patch):
            backup = beside(root / name, BACKUP_SUFFIX)
            if name not in listed and backup.is_file() and not has_digest(root / name, digest_of(backup)):
                again = reinstall(each.package, each.version)
                return f"{name} is not its backup {backup.name}, and its ledger is missing: {again}, remove the backup"
    return ""
