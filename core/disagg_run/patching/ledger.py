"""What an installation says of its own patches, and whether its files still bear that out."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import attrs

from disagg_run.errors import PatchError
from disagg_run.patching.locating import Site, locate_site
from disagg_run.patching.manifest import BEGUN, MANIFEST, Applied, Manifest, read_manifest
from disagg_run.patching.ordering import files_of
from disagg_run.patching.plain_files import digest_of, has_digest
from disagg_run.patching.reinstalled import current_digests, is_stale
from disagg_run.patching.states import FileChange, PatchState
from disagg_run.patching.taking_back import before_of
from disagg_run.patching.traces import lost_backup, reinstall
from disagg_run.records import Patch
from disagg_run.spec.model import as_tuple


@attrs.frozen(kw_only=True)
class Ledger:
    """The patches of one import root."""

    root: str
    patches: tuple[PatchState, ...] = attrs.field(converter=as_tuple)
    #: What is wrong, in one clause: a change that was not finished, a file that is not as it was left; "" = nothing.
    problem: str = ""
    #: Whether a change was begun and not finished. ``patches`` are those of after it where all files are so already.
    unfinished: bool = False
    #: The patches that are listed although the package was installed anew since, so that none is there, in one clause;
    #: "" = no such record.
    stale: str = ""


def engine_ledgers(python: str | None, env: Mapping[str, str] | None = None) -> tuple[Ledger, ...]:
    """The ledgers of all that an interpreter imports, whoever patched what; None = the first ``python3`` of PATH.

    ``env``: the environment that it runs in; None = this process's.

    Raises PatchError where there is no such interpreter.
    """
    found = map(read_ledger, patched_roots(locate_site((), (), python=python, env=env)))
    return tuple(each for each in found if each.patches or each.problem)


def patched_roots(site: Site) -> tuple[Path, ...]:
    """The import roots of a site that have a manifest, or one that a killed process did not come to use."""
    return tuple(root for root in site.searched if any(os.path.lexists(root / name) for name in (MANIFEST, BEGUN)))


def read_ledger(root: Path) -> Ledger:
    """What the manifest of ``root`` lists, checked against the files; reads only, without a lock."""
    manifest = read_manifest(root)
    try:
        if manifest.pending is None and is_stale(root, manifest):
            return Ledger(root=str(root), patches=(), stale=_stale(manifest))
        problem = _unfinished(root, manifest) if manifest.pending is not None else _changed(root, manifest)
    except PatchError as error:  # something in a file's place that is none
        problem = error.message
    unfinished = manifest.pending is not None
    if manifest.pending is not None and _is_made(root, manifest.pending):
        manifest = manifest.pending
    states = [
        PatchState(
            id=each.patch.id,
            state="already applied",
            package=each.package,
            version=each.version,
            required=each.patch.required,
            files=[ledger_line(root, name, manifest, each) for name in files_of(each.patch) if name in manifest.files],
            why=each.patch.why,
            upstream=each.patch.upstream,
            waiver=each.waiver,
        )
        for each in manifest.applied
    ]
    return Ledger(root=str(root), patches=states, problem=problem, unfinished=unfinished)


def _stale(manifest: Manifest) -> str:
    ids = ", ".join(repr(each.patch.id) for each in manifest.applied)
    before = manifest.applied[0]
    what = f"{before.package} {before.version}".strip() or "the package"
    return f"{ids} went when {what} was installed anew or replaced: revert forgets the record, nothing is left to undo"


def _changed(root: Path, manifest: Manifest) -> str:
    changed = [
        name for name, current in current_digests(root, manifest).items() if current != manifest.files[name].current
    ]
    return f"{changed[0]} is not what disagg-run left" if changed else _unprotected(root, manifest)


def _unprotected(root: Path, manifest: Manifest) -> str:
    """Which patched file cannot be taken back, and the remedy; "" = all can."""
    for each in manifest.applied:
        lost = lost_backup(root, files_of(each.patch), manifest)
        if lost:
            return f"patched, but {lost}: {reinstall(each.package, each.version)}"
    return ""


def _unfinished(root: Path, manifest: Manifest) -> str:
    """What the files of a change under way are now: each is whole, the old one or the new one."""
    pending = manifest.pending
    assert pending is not None
    found = []
    for name, file in pending.files.items():
        before, now = before_of(name, file, manifest), digest_of(root / name)
        if now not in (before, file.current):
            found.append(f"{name} is neither the old nor the new one")
        elif before != file.current:
            as_before = " as before" if now == before and file.original not in (before, file.current) else ""
            found.append(f"{name} is {'unpatched' if now == file.original else 'patched'}{as_before}")
    now = ", ".join(found) or "no file changes"
    return f"a change was begun and not finished, {now}: apply or revert finishes it"


def _is_made(root: Path, pending: Manifest) -> bool:
    return all(has_digest(root / name, file.current) for name, file in pending.files.items())


def ledger_line(root: Path, name: str, manifest: Manifest, applied: Applied) -> FileChange:
    """One file of an applied patch."""
    file = manifest.files[name]
    return FileChange(
        file=name,
        path=str(root / name),
        before=file.original,
        after=file.current,
        as_released=as_released(applied.patch, applied.version, name, file.original),
    )


def as_released(patch: Patch, version: str, file: str, digest: str) -> bool | None:
    """Whether a file is what the release has; None where the patch does not know."""
    known = {each.before for each in patch.digests if each.file == file and each.version == version.partition("+")[0]}
    return digest in known if known else None
