"""What would become of patches on one installation: matched and carried out in memory, nothing written."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import attrs

from disagg_run.errors import PatchError
from disagg_run.patching.candidates import Candidate, concerned, state_of, unfit
from disagg_run.patching.editing import Edited, Fits, Unfit
from disagg_run.patching.fitting import identity
from disagg_run.patching.ledger import as_released, ledger_line
from disagg_run.patching.locating import Site
from disagg_run.patching.manifest import Applied, Manifest, PatchedFile, read_manifest, sha256
from disagg_run.patching.ordering import closure, files_of, in_order
from disagg_run.patching.originals import original_bytes
from disagg_run.patching.reinstalled import is_outdated
from disagg_run.patching.standing import carry_out_anew
from disagg_run.patching.states import FileChange, PatchState
from disagg_run.patching.texts import text_of
from disagg_run.patching.traces import lost_backup, lost_record, reinstall
from disagg_run.patching.writing import FileWrite
from disagg_run.records import Patch
from disagg_run.spec.model import frozen_map


@attrs.frozen(kw_only=True)
class RootChange:
    """What has to be written in one import root."""

    root: Path
    writes: tuple[FileWrite, ...]
    manifest: Manifest
    #: The manifest that stands there speaks of another installation and goes first.
    outdated: Manifest | None = None


@attrs.frozen(kw_only=True)
class Examined:
    """The states that all patches would have, and what it takes."""

    states: tuple[PatchState, ...]
    changes: tuple[RootChange, ...]
    #: Import roots in which a change was begun and not finished.
    unfinished: tuple[Path, ...] = ()


def examine(patches: Sequence[Patch], site: Site, *, waiver: str = "") -> Examined:
    """Match ``patches``, which stand in order, on the installation ``site``.

    The states are those of ``patches``, then of others that are applied there already.
    Raises PatchError for what no choice of patches helps: files changed by somebody else, patches that want one place.
    """
    settled: dict[str, PatchState] = {}
    candidates: list[Candidate] = []
    for patch in patches:
        found = concerned(patch, site)
        lost = next((name for name in patch.requires if name in settled and not _stands(settled[name])), "")
        if isinstance(found, Candidate) and lost:
            settled[patch.id] = unfit(patch, f"it requires {lost!r}", found.package, found.version)
        elif isinstance(found, Candidate):
            candidates.append(found)
        else:
            settled[patch.id] = found
    changes, unfinished = [], []
    for root in dict.fromkeys(each.root for each in candidates):
        here = [each for each in candidates if each.root == root]
        if read_manifest(root).pending is not None:
            unfinished.append(root)
            continue
        states, change = _Root(root, here, site, waiver).examine()
        settled.update(states)
        if change is not None:
            changes.append(change)
    asked = [settled.pop(patch.id) for patch in patches if patch.id in settled]
    return Examined(
        states=(*asked, *settled.values()),
        changes=tuple(changes),
        unfinished=tuple(unfinished),
    )


def _stands(state: PatchState) -> bool:
    return state.state != "does not match"


class _Root:
    """The patches of one import root: those asked for, and those that its manifest lists already."""

    def __init__(self, root: Path, candidates: Sequence[Candidate], site: Site, waiver: str) -> None:
        self.root = root
        self.candidates = {each.patch.id: each for each in candidates}
        manifest = read_manifest(root)
        self.outdated = manifest if manifest.files and is_outdated(root, manifest, site.versions) else None
        self.manifest = Manifest() if self.outdated else manifest
        self.before = {each.patch.id: each for each in self.manifest.applied}
        self.waiver = waiver
        patches = {
            **{name: each.patch for name, each in self.before.items()},
            **{name: each.patch for name, each in self.candidates.items()},
        }
        # What is required and not here is not needed for this version, or the caller would have said so.
        self.patches = in_order(
            [
                attrs.evolve(patch, requires=tuple(name for name in patch.requires if name in patches))
                for patch in patches.values()
            ]
        )
        self.originals: dict[str, bytes | None] = {}

    def examine(self) -> tuple[dict[str, PatchState], RootChange | None]:
        """The states of the patches asked for, and the change that it takes; None = everything stands."""
        others = {name: self._unasked(each) for name, each in self.before.items() if name not in self.candidates}
        if self.before and all(self._stands(name) for name in self.candidates):
            return {name: self._standing(name) for name in self.candidates} | others, None
        names = dict.fromkeys(name for patch in self.patches for name in files_of(patch))
        self.originals = {name: original_bytes(self.root, name, self.manifest) for name in names}
        edited = carry_out_anew({name: text_of(data) for name, data in self.originals.items()}, self.patches)
        after = {name: text.encode() for name, text in edited.texts.items()}
        self._check_kept(edited)
        self._check_digests(edited, after)
        states = {name: self._state(each, edited, after) for name, each in self.candidates.items()}
        applied = self._applied(edited)
        writes, files = self._writes(after)
        if not writes and applied == self.manifest.applied:
            return states | others, None
        manifest = Manifest(files=files, applied=applied)
        change = RootChange(root=self.root, writes=writes, manifest=manifest, outdated=self.outdated)
        return states | others, change

    def _stands(self, name: str) -> bool:
        before = self.before.get(name)
        return before is not None and identity(before.patch.edits) == identity(self.candidates[name].patch.edits)

    def _standing(self, name: str) -> PatchState:
        """The state of a patch that the manifest lists, and whose files are as it says."""
        return self._listed(self.before[name], self.candidates[name].patch)

    def _unasked(self, before: Applied) -> PatchState:
        """The state of a patch that is there and that nobody asked for now: the run has it all the same."""
        return self._listed(before, before.patch, "by an earlier call, nobody asked for it now")

    def _listed(self, before: Applied, patch: Patch, *details: str) -> PatchState:
        lines = [
            ledger_line(self.root, file, self.manifest, before)
            for file in files_of(patch)
            if file in self.manifest.files
        ]
        lost = lost_backup(self.root, files_of(patch), self.manifest)
        remedy = f"{reinstall(before.package, before.version)} to take it back" if lost else ""
        detail = "; ".join(each for each in (lost, *details) if each)
        state = state_of(patch, "already applied", detail, before.package, before.version)
        return attrs.evolve(state, files=lines, waiver=before.waiver, remedy=remedy)

    def _check_kept(self, edited: Edited) -> None:
        for name in self.before.keys() - self.candidates.keys():
            verdict = edited.verdicts[name]
            if isinstance(verdict, Unfit):
                raise PatchError(
                    f"patch {name!r}, applied in {self.root}, does not fit beside the new ones: {verdict.reason}",
                    remedy=f"revert it first: disagg-run patches revert {name}",
                )

    def _check_digests(self, edited: Edited, after: Mapping[str, bytes]) -> None:
        """A patch that stands alone on a file must make of a release's file what is recorded."""
        by_id = {patch.id: patch for patch in self.patches}
        for patch in self.patches:
            known = {each.file: each for each in patch.digests}
            if not known or isinstance(edited.verdicts[patch.id], Unfit):
                continue
            others = by_id.keys() - closure(patch, by_id)
            touched = {name for other in others for name in files_of(by_id[other])}
            for name, digest in known.items():
                original = self.originals.get(name)
                if name in touched or original is None or sha256(original) != digest.before:
                    continue
                if sha256(after[name]) != digest.after:
                    raise PatchError(
                        f"patch {patch.id!r} makes of {name} another text than is recorded for {digest.version}",
                        remedy="its edits and its digests do not belong together: report it",
                    )

    def _state(self, candidate: Candidate, edited: Edited, after: Mapping[str, bytes]) -> PatchState:
        patch, package, version = candidate.patch, candidate.package, candidate.version
        verdict = edited.verdicts[patch.id]
        again = reinstall(package, version)
        if isinstance(verdict, Unfit):
            found = unfit(patch, verdict.reason, package, version, file=verdict.file)
            return attrs.evolve(found, remedy=again) if verdict.altered else found
        if self._stands(patch.id):
            return self._standing(patch.id)
        files = self._changes(candidate, verdict, after)
        if not verdict.present or patch.id in self.before:
            found = state_of(patch, "applicable", candidate.remark, package, version)
            return attrs.evolve(found, files=files, waiver=self._waiver(patch))
        lost = f"it stands there, {lost_record(self.root, verdict.files, self.manifest)}"
        found = state_of(patch, "already applied", lost, package, version)
        return attrs.evolve(found, files=files, remedy=f"{again} to take it back")

    def _waiver(self, patch: Patch) -> str:
        return self.waiver or patch.waiver

    def _changes(self, candidate: Candidate, verdict: Fits, after: Mapping[str, bytes]) -> tuple[FileChange, ...]:
        changes = []
        for name in verdict.files:
            before = sha256(self.originals[name] or b"")
            changes.append(
                FileChange(
                    file=name,
                    path=str(self.root / name),
                    before=before,
                    after=sha256(after[name]),
                    as_released=as_released(candidate.patch, candidate.version, name, before),
                )
            )
        return tuple(changes)

    def _applied(self, edited: Edited) -> tuple[Applied, ...]:
        applied = []
        for patch in self.patches:
            verdict = edited.verdicts[patch.id]
            before, candidate = self.before.get(patch.id), self.candidates.get(patch.id)
            if before is not None and (candidate is None or self._stands(patch.id)):
                applied.append(before)
            elif candidate is not None and isinstance(verdict, Fits) and not verdict.present:
                applied.append(
                    Applied(
                        patch=candidate.patch,
                        package=candidate.package,
                        version=candidate.version,
                        waiver=self._waiver(candidate.patch),
                        time=time.time(),
                    )
                )
        return tuple(applied)

    def _writes(self, after: Mapping[str, bytes]) -> tuple[tuple[FileWrite, ...], Mapping[str, PatchedFile]]:
        writes, files = [], {}
        for name, data in after.items():
            original = self.originals[name]
            assert original is not None
            known = self.manifest.files.get(name)
            digest = sha256(data)
            if data != original:
                moment = known.mtime_ns if known else (self.root / name).stat().st_mtime_ns
                files[name] = PatchedFile(original=sha256(original), current=digest, mtime_ns=moment)
            if digest != (known.current if known else sha256(original)):
                writes.append(FileWrite(file=name, after=data, original=original))
        return tuple(writes), frozen_map(files)
