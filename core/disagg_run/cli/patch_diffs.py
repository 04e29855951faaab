"""Patches as diffs: of the installed files, or of the edits alone."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence

from disagg_run.errors import PatchError
from disagg_run.patching import find_site, preview
from disagg_run.patching.fitting import contains
from disagg_run.patching.ordering import file_of, in_order
from disagg_run.records import Edit, Patch


def installed_diff(patches: Sequence[Patch], *, target: str | None = None, python: str | None = None) -> str:
    """What ``patches`` make of the unpatched files of an installation, as a unified diff."""
    found = preview(in_order(patches), find_site(patches, target=target, python=python))
    if found.remarks and not found.texts:
        raise PatchError(f"nothing to show: {found.remarks[0]}")
    lines: list[str] = [f"# {remark}\n" for remark in found.remarks]
    for change in found.texts:
        old, new = change.before.splitlines(keepends=True), change.after.splitlines(keepends=True)
        lines += difflib.unified_diff(old, new, f"a/{change.file}", f"b/{change.file}")
    return "".join(lines)


def edits_as_diff(patch: Patch, version: str | None = None) -> str:
    """The edits of a patch, each as what goes and what comes; ``version``: those for one package version."""
    return "".join(
        line
        for edit in patch.edits
        if version is None or (contains(patch.versions, version) and contains(edit.versions, version))
        for line in _edit(patch, edit)
    )


def _edit(patch: Patch, edit: Edit) -> Iterator[str]:
    versions = f"  [{patch.package[0]} {edit.versions}]" if edit.versions else ""
    yield f"--- {file_of(patch, edit)}  {edit.scope or '(file)'}{versions}\n"
    old, new = edit.anchor.splitlines(), edit.replacement.splitlines()
    for line in list(difflib.unified_diff(old, new, n=len(old), lineterm=""))[3:]:
        yield line.rstrip() + "\n"
