"""What the user mounts into containers: ``HOST`` or ``HOST:INSIDE[:ro|rw]``, and where a host path is found inside."""

from __future__ import annotations

import functools

from disagg_run.errors import SpecError
from disagg_run.records import Mount
from disagg_run.spec.model import LaunchSpec


def read_mount(text: str) -> Mount:
    """The mount that a text means, to be written to unless it ends with ``:ro``; one path alone is the same inside.

    Raises ValueError with the reason for what is no mount.
    """
    paths = text.split(":")
    mode = paths.pop() if len(paths) > 1 and paths[-1] in ("ro", "rw") else "rw"
    if len(paths) > 2 or not all(path.startswith("/") for path in paths):
        raise ValueError(f"{text!r} is no mount: write /HOST:/INSIDE, and :ro behind it where nothing is to be written")
    for path in paths:
        if ".." in path.split("/"):
            raise ValueError(f"{text!r} is no mount: {path!r} goes up by .., write the path that is meant")
    source, target = (_clean(path) for path in (paths[0], paths[-1]))
    if target == "/":
        raise ValueError(f"{text!r} would hide all that is in the image: mount it at a place of its own, /HOST:/INSIDE")
    return Mount(source=source, target=target, read_only=mode == "ro")


def _clean(path: str) -> str:
    return "/" + "/".join(part for part in path.split("/") if part not in ("", "."))


def asked_mounts(spec: LaunchSpec) -> tuple[Mount, ...]:
    """The mounts that the user asked for; none where no container is used.

    Raises SpecError for what is no mount, and for two at one place.
    """
    return _asked(spec.mounts) if spec.image else ()


@functools.lru_cache(maxsize=16)
def _asked(texts: tuple[str, ...]) -> tuple[Mount, ...]:
    mounts: dict[str, Mount] = {}
    for text in texts:
        try:
            mount = read_mount(text)
        except ValueError as error:
            raise SpecError(str(error)) from None
        other = mounts.setdefault(mount.target, mount)
        if other.source != mount.source:
            raise SpecError(
                f"{other.source!r} and {mount.source!r} are both to be mounted at {mount.target!r}",
                remedy="leave one of the two mounts out, or give it another place inside",
            )
        mounts[mount.target] = mount
    return tuple(mounts.values())


def inside(mounts: tuple[Mount, ...], path: str) -> str:
    """Where a container has a path of the host: below the mount that covers it most closely, else "" (nowhere)."""
    fitting = [mount for mount in mounts if is_below(path, mount.source)]
    if not fitting:
        return ""
    closest = max(fitting, key=lambda mount: len(mount.source))
    rest = path[len(closest.source.rstrip("/")) :]
    return (closest.target.rstrip("/") + rest) or "/"


def is_below(path: str, directory: str) -> bool:
    """Whether ``path`` is ``directory`` or lies in it."""
    return path == directory or path.startswith(directory.rstrip("/") + "/")
