"""Files of an installation read without waiting for anybody: a pipe or a device in a file's place is refused."""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path

from disagg_run.errors import PatchError
from disagg_run.input_files import os_reason

_KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def read_plain(path: Path) -> bytes:
    """The bytes of a file, also through a link.

    Raises FileNotFoundError or NotADirectoryError where there is none, and PatchError where what is there is no file or
    cannot be read.
    """
    try:
        other = other_kind(os.stat(path).st_mode)
        if other:
            raise PatchError(f"{path} is {other}, not a file", remedy="reinstall the package")
        # What takes its place just now must not keep us waiting either.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            return file.read()
    except (FileNotFoundError, NotADirectoryError):
        raise
    except OSError as error:
        raise PatchError(f"cannot read {path}: {os_reason(error)}", remedy="reinstall the package") from None


def digest_of(path: Path) -> str:
    """The digest of a file; "" = there is none. Raises PatchError as ``read_plain``."""
    try:
        return sha256(read_plain(path))
    except (FileNotFoundError, NotADirectoryError):
        return ""


def has_digest(path: Path, digest: str) -> bool:
    """Whether a file is there, can be read and has that digest."""
    try:
        return digest_of(path) == digest
    except PatchError:
        return False


def other_kind(mode: int) -> str:
    """What it is that is no file, by its ``st_mode``: ``a directory``; "" = a file."""
    return "" if stat.S_ISREG(mode) else _KINDS.get(stat.S_IFMT(mode), "something else")


def sha256(data: bytes) -> str:
    """The digest that manifests and patches use, in hex."""
    return hashlib.sha256(data).hexdigest()
