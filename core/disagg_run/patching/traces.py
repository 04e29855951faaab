"""What patching leaves beside the files, ledger and backups, and what is missing of it where a patch stands."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from disagg_run.errors import PatchError
from disagg_run.patching.manifest import BACKUP_SUFFIX, Manifest
from disagg_run.patching.new_files import beside
from disagg_run.patching.writing import backup_of


def reinstall(package: str, version: str) -> str:
    """What to do where only the installer has the files that a package came with."""
    return f"reinstall {package}=={version}" if package and version else "reinstall the package"


def lost_backup(root: Path, files: Iterable[str], manifest: Manifest) -> str:
    """Which of ``files`` the manifest says is patched, and has no backup that is its original; "" = all have theirs."""
    for name in files:
        if name not in manifest.files:
            continue
        try:
            backup_of(root / name, manifest.files[name])
        except PatchError:
            there = beside(root / name, BACKUP_SUFFIX).exists()
            return f"the backup {name}{BACKUP_SUFFIX} {'is not the original' if there else 'is missing'}"
    return ""


def lost_record(root: Path, files: Iterable[str], manifest: Manifest) -> str:
    """What a patch that stands in ``files``, and that the manifest does not list, should have and has not."""
    # The backup of a file that the manifest lists has the patch in it.
    kept = all(beside(root / name, BACKUP_SUFFIX).is_file() and name not in manifest.files for name in files)
    return "its ledger is missing" if kept else "its ledger and backup are missing"
