"""Whether the files of a pre-release are still as they were before its release: its version cannot tell."""

from __future__ import annotations

from pathlib import Path

from disagg_run.patching.fitting import edits_before
from disagg_run.patching.manifest import Manifest, read_manifest
from disagg_run.patching.matching import NoMatch, locate, source_text
from disagg_run.patching.ordering import file_of
from disagg_run.patching.originals import original_bytes
from disagg_run.patching.plain_files import has_digest
from disagg_run.patching.texts import text_of
from disagg_run.records import Edit, Patch


def older_text(patch: Patch, version: str, root: Path) -> tuple[str, str]:
    """Which file of a pre-release wants other edits than its release does, and why in one clause; ("", "") = none.

    ``patch``: with its edits for all versions. The files are those of before the release where each edit that only
    older versions have finds its place. Edits that share their place with one of the release cannot tell it.
    Raises PatchError for a ledger that is damaged and a file that cannot be read.
    """
    older = edits_before(patch, version)
    if not older or not all(_fits(patch, edit, root) for edit in older):
        return "", ""
    edit = older[0]
    first = edit.anchor.strip().splitlines()[0]
    return file_of(patch, edit), (
        f"pre-release {version} counts as its release, for which no edit of {first!r} in "
        f"{edit.scope or 'the file'} is made, and the file has it as versions {edit.versions} do"
    )


def _fits(patch: Patch, edit: Edit, root: Path) -> bool:
    text = text_of(_unpatched(root, file_of(patch, edit)))
    if not isinstance(text, str):
        return False
    try:
        return not locate(source_text(text), edit).present
    except NoMatch:
        return False


def _unpatched(root: Path, name: str) -> bytes | None:
    manifest = read_manifest(root)
    known = manifest.files.get(name)
    ours = known is not None and has_digest(root / name, known.current)
    return original_bytes(root, name, manifest if ours else Manifest())
