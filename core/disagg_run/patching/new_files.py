"""New files, made beside what they will replace: on the disk before they count."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from disagg_run.patching.manifest import Manifest


def beside(path: Path, suffix: str) -> Path:
    """The file of ours that lies beside ``path``."""
    return path.with_name(path.name + suffix)


def write_manifest(root: Path, name: str, manifest: Manifest, added: list[Path]) -> None:
    """Write ``manifest`` to a new file ``name`` of ``root``; its path comes to ``added`` first."""
    path = root / name
    path.unlink(missing_ok=True)
    added.append(path)
    with new_file(path) as handle:
        write_all(handle, manifest.to_json().encode())
        os.fchmod(handle, 0o644)
        os.fsync(handle)


@contextlib.contextmanager
def new_file(path: Path) -> Iterator[int]:
    """A file descriptor of a file that did not exist."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        yield handle
    finally:
        os.close(handle)


def write_all(handle: int, data: bytes) -> None:
    """Write all of ``data``."""
    view = memoryview(data)
    while view:
        view = view[os.write(handle, view) :]


def sync_directory(path: Path) -> None:
    """Have the names in a directory on the disk, where it can be had.

    Some file systems cannot; then a power cut may show the old names, which is a state like any other.
    """
    with contextlib.suppress(OSError):
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
