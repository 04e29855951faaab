"""Whether a patch concerns an installed version, and which of its edits do."""

from __future__ import annotations

import attrs
from packaging.specifiers import InvalidSpecifier, Specifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from disagg_run.errors import PatchError
from disagg_run.patching.ordering import file_of
from disagg_run.records import Edit, Patch


@attrs.frozen
class NotNeeded:
    """The release has what the patch does."""

    reason: str


@attrs.frozen
class Outside:
    """The patch is not made for that version."""

    reason: str


def contains(specifiers: str, version: str, *, before_release: bool = False) -> bool:
    """Whether ``version`` lies in a PEP 440 set, local builds (``1.2+abc``) too; "" holds all.

    A pre-release or development build counts as its release, so that exactly one of ``<X`` and ``>=X`` holds it: PEP
    440 itself keeps 1.0rc1 out of both ``<1.0`` and ``>=1.0``. A bound that is a pre-release itself is compared as it
    is written. ``before_release``: it counts as what comes just before its release instead.
    Raises PatchError where either cannot be read.
    """
    try:
        found = Version(version)
    except InvalidVersion:
        raise PatchError(f"{version!r} is no version", remedy="write it like 1.2.3") from None
    try:
        return all(_holds(each, found, before_release) for each in SpecifierSet(specifiers))
    except InvalidSpecifier:
        raise PatchError(f"{specifiers!r} is no version range", remedy="write it like '>=1.2,<1.4'") from None


def _holds(specifier: Specifier, version: Version, before_release: bool) -> bool:
    if not version.is_prerelease or _is_exact(specifier):
        return specifier.contains(version, prereleases=True)
    if not before_release:
        return specifier.contains(_release(version), prereleases=True)
    if specifier.operator == "<":  # without PEP 440's exception for pre-releases of the bound
        return version < Version(specifier.version)
    return specifier.contains(version, prereleases=True)


def _is_exact(specifier: Specifier) -> bool:
    """Whether a bound tells pre-releases apart itself."""
    text = specifier.version.removesuffix(".*")
    return specifier.operator == "===" or Version(text).is_prerelease


def _release(version: Version) -> Version:
    """The release that a pre-release leads to: 1.0 of 1.0rc1.dev2, 1.0.post1 of 1.0.post1.dev2."""
    post = f".post{version.post}" if version.post is not None and version.pre is None else ""
    return Version(f"{version.base_version}{post}")


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


def edits_before(patch: Patch, version: str) -> tuple[Edit, ...]:
    """The edits that a pre-release has no use for if it is as its release, and needs if it is as what comes before.

    Without those whose place an edit for the release changes too. None for a version that is no pre-release.
    """
    if not Version(version).is_prerelease:
        return ()
    of_release = [edit for edit in patch.edits if contains(edit.versions, version)]
    places = {(file_of(patch, edit), edit.scope, edit.anchor) for edit in of_release}
    return tuple(
        edit
        for edit in patch.edits
        if edit not in of_release
        and contains(edit.versions, version, before_release=True)
        and (file_of(patch, edit), edit.scope, edit.anchor) not in places
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
    """A patch narrowed for a plan; where its edits depend on the version, it is for this version alone.

    For a pre-release it keeps what tells on the node that the files are older than the release, with its range.
    """
    found = for_version(patch, version)
    if not isinstance(found, Patch):
        return patch
    public = version.partition("+")[0]
    only = any(edit.versions for edit in patch.edits)
    edits = (*found.edits, *edits_before(patch, version))
    return attrs.evolve(found, edits=edits, planned_for=version, versions=f"=={public}" if only else patch.versions)
