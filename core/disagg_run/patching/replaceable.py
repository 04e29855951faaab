"""Whether files can be replaced by others at all, known before anything is written.

Linux (rename(2), ioctl_iflags(2)) lets nobody, root included, replace a file that something is mounted on, as
containers do with single files, nor one that is immutable or append-only, nor any file of a directory that is either.
"""

from __future__ import annotations

import array
import fcntl
import os
import re
import stat
from collections.abc import Iterable
from pathlib import Path

from disagg_run.errors import PatchError
from disagg_run.patching.manifest import BACKUP_SUFFIX, MANIFEST
from disagg_run.patching.new_files import beside
from disagg_run.patching.plain_files import other_kind

# FS_IOC_GETFLAGS of linux/fs.h for x86-64 and arm64. Where it has another number, or a file system has no such flags,
# the call fails, and a change meets the obstacle later: what was replaced by then is put back.
_GET_FLAGS = 0x80086601
_FLAGS = {0x10: ("immutable", "i"), 0x20: ("append-only", "a")}


def check_replaceable(root: Path, names: Iterable[str]) -> None:
    """Raise PatchError where one of the files ``names`` of an import root could not be replaced, nor its record."""
    mounts = _mount_points()
    directories = {root}
    for path in [root / MANIFEST, *(root / name for name in names)]:
        if os.path.lexists(path):
            _check_file(root, path, mounts)
        backup = beside(path, BACKUP_SUFFIX)
        if backup.exists():
            _check_flags(root, backup)
        directories |= {path.parent, path.parent / "__pycache__"}
    for directory in sorted(directories):
        if directory.is_dir():
            _check_writable(root, directory)
            _check_flags(root, directory)


def _check_file(root: Path, path: Path, mounts: frozenset[str]) -> None:
    mode = os.lstat(path).st_mode
    if stat.S_ISLNK(mode):
        raise PatchError(
            f"{path} is a link to {os.readlink(path)}", remedy="patch the installation in which the file itself lies"
        )
    if other_kind(mode):
        raise PatchError(f"{path} is {other_kind(mode)}, not a file", remedy="reinstall the package")
    if os.path.join(os.path.realpath(path.parent), path.name) in mounts:
        raise PatchError(
            f"cannot patch {root}: {path} is a mount point of its own, which cannot be replaced",
            remedy="nothing was changed; unmount it, or patch before it is mounted, or mount its directory instead",
        )
    _check_flags(root, path)


def _check_writable(root: Path, directory: Path) -> None:
    if os.statvfs(directory).f_flag & os.ST_RDONLY:
        raise PatchError(
            f"cannot patch {root}: {directory} is on a file system that is mounted read-only",
            remedy="nothing was changed; mount it for writing, or patch where it is made, as in an image's build",
        )


def _check_flags(root: Path, path: Path) -> None:
    flags = _flags(path)
    for bit, (name, letter) in _FLAGS.items():
        if flags & bit:
            raise PatchError(
                f"cannot patch {root}: {path} is {name} (chattr +{letter})",
                remedy=f"nothing was changed; take that off first, as root: chattr -{letter} {path}",
            )


def _flags(path: Path) -> int:
    """The inode flags of a file or directory; 0 where they cannot be had."""
    answer = array.array("i", [0, 0])  # the kernel writes an int, whatever the number says of its size
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return 0
    try:
        fcntl.ioctl(handle, _GET_FLAGS, answer)
    except OSError:
        return 0
    finally:
        os.close(handle)
    return answer[0]


def _mount_points() -> frozenset[str]:
    """Where something is mounted, as this process sees it; nothing where that cannot be read.

    The fifth field of each line, in which blanks and backslashes are octal (proc_pid_mountinfo(5)).
    """
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
            points = [line.split(" ")[4] for line in file]
    except (OSError, IndexError):
        return frozenset()
    return frozenset(re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), point) for point in points)
