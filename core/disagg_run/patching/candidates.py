"""Whether a patch concerns an installation at all: package, version, files."""

from __future__ import annotations

from pathlib import Path

import attrs

from disagg_run.errors import PatchError
from disagg_run.patching.fitting import NotNeeded, Outside, contains, for_version, upstream_history
from disagg_run.patching.locating import Site, top_of
from disagg_run.patching.ordering import files_of
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


def concerned(patch: Patch, site: Site) -> Candidate | PatchState:
    """The patch as it is for the installed version, or the state that it has without a look at its files.

    Raises PatchError for a patch whose files belong to two installations.
    """
    installed = site.version(patch.package)
    names = " or ".join(patch.package)
    if installed is None:
        if patch.versions or patch.fixed_in or not any(_exists(site, name) for name in files_of(patch)):
            return state_of(patch, "does not match", f"no {names} is installed for the {site.name}")
        installed = ("", "")
    package, version = installed
    mismatch = _plan_mismatch(patch, package, version)
    if mismatch:
        return state_of(patch, "does not match", mismatch, package, version)
    found = patch if not version else for_version(patch, version)
    if isinstance(found, NotNeeded):
        return state_of(patch, "not needed", found.reason, package, version)
    if isinstance(found, Outside):
        planned = f"the plan was made for {patch.planned_for}, and " if patch.planned_for else ""
        return unfit(patch, planned + found.reason, package, version)
    tops = [top for top in map(top_of, files_of(found)) if top in site.roots]
    roots = [site.roots[top] for top in tops]
    if not roots:
        return unfit(patch, f"none of its files is there for the {site.name}", package, version)
    if len(set(roots)) > 1:
        raise PatchError(f"patch {patch.id!r} has files under {roots[0]} and {roots[1]}, which are two installations")
    return Candidate(patch=found, package=package, version=version, root=roots[0])


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
        how = f"the setting {patch.instead}" if patch.instead else "nothing to patch"
        return f"the plan was made for {patch.planned_for}, which has {how}, and {package} {version} has not"
    if actual and not planned and patch.instead:
        return (
            f"the plan was made for {patch.planned_for}, {package} {version} has the setting {patch.instead}, "
            "and the plan does not set it"
        )
    return ""


def unfit(patch: Patch, reason: str, package: str, version: str) -> PatchState:
    """The state of a patch that does not match, with what upstream did about its matter."""
    history = upstream_history(patch)
    return state_of(patch, "does not match", reason + (f" (upstream: {history})" if history else ""), package, version)


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
