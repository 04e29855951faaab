"""Whether a package was installed anew since it was patched, so that its ledger speaks of files that are no more."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from disagg_run.errors import PatchError
from disagg_run.patching.manifest import MANIFEST, Manifest, read_manifest
from disagg_run.patching.plain_files import digest_of
from disagg_run.patching.searching import installed


def current_digests(root: Path, manifest: Manifest) -> dict[str, str]:
    """The digests of a manifest's files as they are now; "" = the file is gone.

    Raises PatchError for what is no file, or cannot be read.
    """
    return {name: digest_of(root / name) for name in manifest.files}


def is_stale(root: Path, manifest: Manifest, versions: Mapping[str, str] | None = None) -> bool:
    """Whether none of the manifest's files is what disagg-run left, and a new installation explains all that they are.

    That is: they are unpatched, or the package has another version than was patched, also under another of its names,
    or is not there any more. ``versions``: what is known from elsewhere, by distribution, for a package whose metadata
    do not lie in ``root``. Raises PatchError as ``current_digests``.
    """
    current = current_digests(root, manifest)
    if not current or any(digest == manifest.files[name].current for name, digest in current.items()):
        return False
    found = _installed(root, manifest, versions or {})
    if all(digest in _clean(name, manifest, found) for name, digest in current.items()):
        return True
    if not found:
        return not any(current.values())
    patched = {(each.package, each.version) for each in manifest.applied if each.package}
    return bool(patched) and not patched & found


def is_outdated(root: Path, manifest: Manifest, versions: Mapping[str, str] | None = None) -> bool:
    """``is_stale``; raises PatchError also where files were changed that nothing explains."""
    if is_stale(root, manifest, versions):
        return True
    for name, digest in current_digests(root, manifest).items():
        if digest != manifest.files[name].current:
            raise PatchError(
                f"{root / name} was changed after disagg-run patched it",
                remedy=f"undo that change, or reinstall the package and remove {root / MANIFEST}",
            )
    return False


def manifest_in_force(root: Path) -> Manifest:
    """The manifest of an import root; an empty one where it is stale. Raises PatchError as ``read_manifest``."""
    manifest = read_manifest(root)
    return Manifest() if manifest.pending is None and is_stale(root, manifest) else manifest


def _installed(root: Path, manifest: Manifest, versions: Mapping[str, str]) -> frozenset[tuple[str, str]]:
    """Name and version of all that is installed of the distributions whose files were patched."""
    names = dict.fromkeys(name for each in manifest.applied for name in (each.package, *each.patch.package) if name)
    here = frozenset((each["name"], each["version"]) for each in installed(names, (), [str(root)]))
    return here or frozenset((name, versions[name]) for name in names if name in versions)


def _clean(name: str, manifest: Manifest, found: frozenset[tuple[str, str]]) -> frozenset[str]:
    """The digests that a file has without patches: those of before, and those of the release that is installed."""
    releases = {version.partition("+")[0] for _, version in found}
    known = (each for applied in manifest.applied for each in applied.patch.digests)
    return frozenset(
        {manifest.files[name].original, *(e.before for e in known if e.file == name and e.version in releases)}
    )
