"""Whether a patch concerns an installation at all: package, version, files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import attrs

from disagg_run.errors import PatchError
from disagg_run.patching.fitting import NotNeeded, Outside, contains, for_version, is_version, upstream_history
from disagg_run.patching.locating import Installed, Site
from disagg_run.patching.older_text import older_text
from disagg_run.patching.ordering import files_of, top_of, tops_of
from disagg_run.patching.states import PatchState, State
from disagg_run.records import Patch


@attrs.frozen(kw_only=True)
class Candidate:
    """A patch that concerns the installed version."""

    #: With the edits of this version alone.
    patch: Patch
    #: Installed distribution and its version; "" = none was found, and none is needed to know.
    package: str
    version: str
    #: Import root of its files.
    root: Path
    #: What is odd about the installation and keeps nothing from being patched, in one clause.
    remark: str = ""


def concerned(patch: Patch, site: Site) -> Candidate | PatchState:
    """The patch as it is for the installed version, or the state that it has without a look at its files.

    Raises PatchError for a patch whose files belong to two installations.
    """
    names = " or ".join(patch.package)
    owners = owners_of(patch, site)
    package, version = (owners[0].name, owners[0].version) if owners else ("", "")
    if not owners and (patch.versions or patch.fixed_in or not any(_exists(site, name) for name in files_of(patch))):
        return state_of(patch, "does not match", f"no {names} is installed for the {site.name}")
    doubt = _doubt(owners)
    if doubt is not None:
        reason, remedy = doubt
        return attrs.evolve(state_of(patch, "does not match", reason, package, version), remedy=remedy)
    mismatch = _plan_mismatch(patch, package, version)
    if mismatch:
        return unfit(patch, mismatch, package, version)
    found = patch if not version else for_version(patch, version)
    if isinstance(found, NotNeeded):
        return state_of(patch, "not needed", found.reason, package, version)
    if isinstance(found, Outside):
        planned = f"the plan was made for {patch.planned_for}, and " if patch.planned_for else ""
        return unfit(patch, planned + found.reason, package, version)
    tops = [top for top in map(top_of, files_of(found)) if top in site.roots]
    roots = list(dict.fromkeys(site.roots[top] for top in tops))
    if not roots:
        return unfit(patch, f"none of its files is there for the {site.name}", package, version)
    if len(roots) > 1:
        raise PatchError(
            f"patch {patch.id!r} has files under {roots[0]} and {roots[1]}, which are two installations",
            remedy="name one of them with --target",
        )
    file, older = older_text(patch, version, roots[0]) if version else ("", "")
    if older:
        return unfit(patch, older, package, version, file=file)
    others = ", ".join(f"{each} is installed there too" for each in owners[1:])
    remark = f"taken for {owners[0]}, {others}" if others else ""
    return Candidate(patch=found, package=package, version=version, root=roots[0], remark=remark)


def owners_of(patch: Patch, site: Site) -> tuple[Installed, ...]:
    """The distributions that may have brought a patch's files: the one to take, then others that bring the same.

    Those count that list the files' package as theirs, or all where none has such a list.
    """
    tops = tops_of(patch)
    roots = {site.roots[top] for top in tops if top in site.roots}
    found = site.distributions(patch.package)
    # What lies beside the package goes before what another directory has of the same name.
    found = tuple(each for each in found if each.where in roots) or found[:1]
    owners = [each for each in found if tops & set(each.owns)] or list(found)
    if not owners:
        return ()
    first = set(owners[0].owns) & tops
    rivals = [each for each in owners[1:] if not first or first & set(each.owns)]
    return (owners[0], *rivals)


def _doubt(owners: Sequence[Installed]) -> tuple[str, str] | None:
    """Why it cannot be told which version the files have, and the remedy; None = it can."""
    for each in owners:
        if not is_version(each.version):
            said = f"name the version {each.version!r}, which is none" if each.version else "name no version"
            return f"the metadata of {each.name} in {each.where} {said}", f"reinstall {each.name}"
        if each.version != owners[0].version:
            # Whichever was installed last has written its files over the other's, and nobody has noted which that was.
            return f"{owners[0]} and {each} are both installed in {each.where}", "uninstall them, then install one"
    return None


def _exists(site: Site, file: str) -> bool:
    path = site.path(file)
    return path is not None and path.exists()


def _plan_mismatch(patch: Patch, package: str, version: str) -> str:
    """Why a patch that a plan settled for one version is wrong for the installed one; "" = nothing is wrong."""
    if not patch.planned_for or not patch.fixed_in or not version:
        return ""
    fixed = f">={patch.fixed_in}"
    planned, actual = contains(fixed, patch.planned_for), contains(fixed, version)
    if planned and not actual:
        if patch.instead:
            how = f"has the setting {patch.instead}, and {package} {version} has not"
        else:
            how = f"does without this patch, and {package} {version} needs it"
        return f"the plan was made for {patch.planned_for}, which {how}"
    if actual and not planned and patch.instead:
        return (
            f"the plan was made for {patch.planned_for}, {package} {version} has the setting {patch.instead}, "
            "and the plan does not set it"
        )
    return ""


def unfit(patch: Patch, reason: str, package: str, version: str, *, file: str = "") -> PatchState:
    """The state of a patch that does not match, with what upstream did about its matter.

    ``file``: the one that the reason is about; "" = all that the patch changes.
    """
    where = file or ", ".join(files_of(patch)) or patch.file
    history = upstream_history(patch)
    said = f"{where}: {reason}" + (f" (upstream: {history})" if history else "")
    return state_of(patch, "does not match", said, package, version)


def state_of(patch: Patch, state: State, detail: str, package: str = "", version: str = "") -> PatchState:
    """A state with what it takes from the patch."""
    return PatchState(
        id=patch.id,
        state=state,
        detail=detail,
        package=package,
        version=version,
        required=patch.required,
        why=patch.why,
        upstream=patch.upstream,
    )
