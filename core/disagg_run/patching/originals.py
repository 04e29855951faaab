"""The unpatched files of an installation."""

from __future__ import annotations

from pathlib import Path

from disagg_run.patching.manifest import Manifest
from disagg_run.patching.plain_files import read_plain
from disagg_run.patching.writing import backup_of


def original_bytes(root: Path, name: str, manifest: Manifest) -> bytes | None:
    """A file of an import root as it is without the patches that ``manifest`` lists; None = there is no such file.

    Raises PatchError for a backup that is gone and a file that cannot be read.
    """
    path = root / name
    if name in manifest.files:
        return backup_of(path, manifest.files[name])
    try:
        return read_plain(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
