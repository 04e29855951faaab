"""Whether a patch as such can be meant, before any installation is looked at."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from disagg_run.errors import PatchError
from disagg_run.patching.fitting import is_version
from disagg_run.patching.matching import parse
from disagg_run.patching.ordering import is_inside
from disagg_run.records import Edit, Patch


def check_sound(patch: Patch) -> None:
    """Raise PatchError for a patch that its author has got wrong, naming what."""
    flaw = next(_flaws(patch), "")
    if flaw:
        raise PatchError(f"patch {patch.id!r} is wrong: {flaw}", remedy="report it to whoever wrote it")


def is_sound(patch: Patch) -> bool:
    """Whether a patch can be meant."""
    return not next(_flaws(patch), "")


def _flaws(patch: Patch) -> Iterator[str]:
    if not patch.id:
        yield "it has no id"
    if not all(patch.package) or not patch.package:
        yield "it names no package"
    if not _is_range(patch.versions):
        yield f"its versions {patch.versions!r} are no version range, which is written like '>=1.2,<1.4'"
    if patch.fixed_in and not is_version(patch.fixed_in):
        yield f"its fixed_in {patch.fixed_in!r} is no version, which is written like 1.2.3"
    for number, edit in enumerate(patch.edits):
        for flaw in _edit_flaws(patch, edit):
            yield f"edit {number}: {flaw}"


def _edit_flaws(patch: Patch, edit: Edit) -> Iterator[str]:
    name = edit.file or patch.file
    if not is_inside(name):
        yield f"it names the file {name!r}, which is not relative to the import root ('toy/server.py')"
    if not _is_range(edit.versions):
        yield f"its versions {edit.versions!r} are no version range, which is written like '>=1.2,<1.4'"
    if not edit.anchor.strip():
        yield "its anchor is blank"
    if edit.anchor == edit.replacement:
        yield "it puts its anchor in the place of its anchor"
    if edit.by == "statements" and not all(map(_is_python, (edit.anchor, edit.replacement))):
        yield "its anchor or replacement are no Python statements"


def _is_range(text: str) -> bool:
    try:
        SpecifierSet(text)
    except InvalidSpecifier:
        return False
    return True


def _is_python(text: str) -> bool:
    try:
        parse(textwrap.dedent(text))
    except (SyntaxError, ValueError):
        return False
    return True
