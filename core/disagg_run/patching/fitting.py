"""Whether a patch concerns an installed version, and which of its edits do."""

from __future__ import annotations

import attrs
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from disagg_run.errors import PatchError
from disagg_run.records import Edit, Patch


@attrs.frozen
class NotNeeded:
    """The release has what the patch does."""

    reason: str


@attrs.frozen
class Outside:
    """The patch is not made for that version."""

    reason: str


def contains(specifiers: str, version: str) -> bool:
    """Whether ``version`` lies in a PEP 440 set, pre-releases and local builds (``1.2+abc``) too; "" holds all.

    Raises PatchError where either cannot be read.
    """
    try:
        return SpecifierSet(specifiers).contains(Version(version), prereleases=True)
    except InvalidSpecifier:
        raise PatchError(f"{specifiers!r} is no version range", remedy="write it like '>=1.2,<1.4'") from None
    except InvalidVersion:
        raise PatchError(f"{version!r} is no version", remedy="write it like 1.2.3") from None


def is_version(text: str) -> bool:
    """Whether a text is a PEP 440 version."""
    try:
        Version(text)
    except InvalidVersion:
        return False
    return True


def is_needed(patch: Patch, version: str) -> bool:
    """Whether a version is older than the first release that does not need the patch."""
    return not (patch.fixed_in and contains(f">={patch.fixed_in}", version))


def planned_as(patch: Patch) -> str:
    """How a plan grants a patch's wish: by the patch, by a setting, or not at all since nothing is needed."""
    if patch.edits:
        return f"{patch.id} (source patch)"
    return f"{patch.id} (not needed, the setting {patch.instead})" if patch.instead else f"{patch.id} (not needed)"


def for_version(patch: Patch, version: str) -> Patch | NotNeeded | Outside:
    """The patch with the edits and digests of one version, or why it has none."""
    if not is_needed(patch, version):
        return NotNeeded(not_needed(patch))
    package = patch.package[0]
    if not contains(patch.versions, version):
        return Outside(f"it is made for {package} {patch.versions}")
    edits = tuple(edit for edit in patch.edits if contains(edit.versions, version))
    if not edits:
        return Outside(f"it has no edits for {package} {version}")
    public = version.partition("+")[0]
    return attrs.evolve(
        patch,
        edits=tuple(attrs.evolve(edit, versions="") for edit in edits),
        digests=tuple(each for each in patch.digests if each.version == public),
    )


def not_needed(patch: Patch) -> str:
    """Since when a patch is not needed, and why."""
    did = f": {patch.fixed_by}" if patch.fixed_by else ""
    instead = f"; the setting {patch.instead} instead" if patch.instead else ""
    return f"from {patch.package[0]} {patch.fixed_in} on{did}{instead}"


def upstream_history(patch: Patch) -> str:
    """What upstream did about the matter, for a message that says a patch does not match; "" = not known."""
    if patch.fixed_in:
        return not_needed(patch)
    return f"see {patch.upstream}" if patch.upstream else ""


def identity(edits: tuple[Edit, ...]) -> tuple[Edit, ...]:
    """Edits as they are compared: two patches with the same are the same."""
    return tuple(attrs.evolve(edit, versions="") for edit in edits)


def pinned(patch: Patch, version: str) -> Patch:
    """A patch narrowed for a plan; where its edits depend on the version, it is for this version alone."""
    found = for_version(patch, version)
    if not isinstance(found, Patch):
        return patch
    public = version.partition("+")[0]
    only = any(edit.versions for edit in patch.edits)
    return attrs.evolve(found, planned_for=version, versions=f"=={public}" if only else patch.versions)
