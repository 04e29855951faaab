"""What this node has, read from /proc and /sys: no tool needs to be installed, and what cannot be read stays unknown.

Every function takes the directory under which ``proc`` and ``sys`` lie, so that a tree of files can stand for a node.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from disagg_run.facts import NodeFacts
from disagg_run.running.node_devices import gpus, nics, read_line

#: What finds the addresses of network devices.
Interfaces = Callable[[], Mapping[str, tuple[str, ...]]]

_LISTEN = "0A"
_UP, _REJECT = 0x0001, 0x0200
_TOOLS = ("docker", "podman")
_ROOT = Path("/")


def gather(
    root: Path = _ROOT,
    *,
    interfaces: Interfaces | None = None,
    hostname: str = "",
    path: str | None = None,
    models: Iterable[str] = (),
    distributions: Iterable[str] = (),
) -> NodeFacts:
    """The facts of the node whose files lie under ``root``.

    ``interfaces``: None = those of the running system. ``hostname``: "" = this machine's. ``path``: where container
    tools are looked for, as in ``PATH``; None = this process's. ``models``: directories whose Hugging Face snapshot is
    wanted. ``distributions``: packages any of which is the engine; the first one installed gives its version.
    """
    addresses = (interfaces or live_interfaces)()
    count, vendor = gpus(root)
    return NodeFacts(
        hostname=hostname or socket.gethostname(),
        addresses=addresses,
        default_interface=default_interface(root),
        gpus=count,
        gpu_vendor=vendor,
        nics=nics(root, addresses),
        ephemeral_ports=ephemeral_ports(root),
        listening_ports=listening_ports(root),
        memory_bytes=memory_bytes(root),
        container_tool=container_tool(root, os.environ.get("PATH", "") if path is None else path),
        engine_version=installed_version(distributions),
        links=snapshots(root, models),
    )


def live_interfaces() -> dict[str, tuple[str, ...]]:
    """The IP addresses of this machine by network device, without scopes, IPv4 first."""
    import psutil

    families = (socket.AF_INET, socket.AF_INET6)
    found = {}
    for name, entries in sorted(psutil.net_if_addrs().items()):
        of_family = sorted((entry for entry in entries if entry.family in families), key=lambda entry: entry.family)
        found[name] = tuple(entry.address.partition("%")[0] for entry in of_family)
    return {name: addresses for name, addresses in found.items() if addresses}


def default_interface(root: Path) -> str:
    """The network device of the default route, IPv4's before IPv6's, of the least metric; "" = there is none."""
    found: list[tuple[int, int, str]] = []
    for fields in _table(root / "proc/net/route", skip=1):
        if len(fields) > 7 and fields[1] == fields[7] == "00000000" and _usable_route(fields[3]):
            found.append((4, int(fields[6]), fields[0]))
    for fields in _table(root / "proc/net/ipv6_route"):
        if len(fields) > 9 and fields[0] == "0" * 32 and fields[1] == "00" and _usable_route(fields[8]):
            found.append((6, int(fields[5], 16), fields[9]))
    return min(found, default=(0, 0, ""))[2]


def _usable_route(flags: str) -> bool:
    bits = int(flags, 16)
    return bool(bits & _UP) and not bits & _REJECT


def ephemeral_ports(root: Path) -> tuple[int, int]:
    """The range from which the kernel takes ports by itself; the kernel's own default where it cannot be read."""
    words = read_line(root / "proc/sys/net/ipv4/ip_local_port_range").split()
    if len(words) == 2 and all(word.isdigit() for word in words):
        return int(words[0]), int(words[1])
    return NodeFacts().ephemeral_ports


def listening_ports(root: Path) -> tuple[int, ...]:
    """The TCP ports in LISTEN state, whatever address they are bound to."""
    found = set()
    for name in ("tcp", "tcp6"):
        for fields in _table(root / "proc/net" / name, skip=1):
            if len(fields) > 3 and fields[3] == _LISTEN:
                found.add(int(fields[1].rpartition(":")[2], 16))
    return tuple(sorted(found))


def memory_bytes(root: Path) -> int | None:
    """The node's memory; None = unknown."""
    for fields in _table(root / "proc/meminfo"):
        if fields[:1] == ["MemTotal:"] and len(fields) > 1 and fields[1].isdigit():
            return int(fields[1]) * 1024
    return None


def container_tool(root: Path, path: str) -> str:
    """The first container tool of ``path``; "" = none."""
    directories = [each for each in path.split(os.pathsep) if each.startswith("/")]
    for tool in _TOOLS:
        for directory in directories:
            file = root / directory.lstrip("/") / tool
            if file.is_file() and os.access(file, os.X_OK):
                return tool
    return ""


def installed_version(distributions: Iterable[str]) -> str:
    """The version of the first of some distributions that this Python has; "" = none."""
    from importlib import metadata

    for name in distributions:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return ""


def snapshots(root: Path, models: Iterable[str]) -> dict[str, str]:
    """The directory that ``refs/main`` names, for each of ``models`` that is a repository of a Hugging Face cache.

    Repositories beside a model whose name ends with the model's (``models--ORG--NAME``) are looked at too.
    """
    found = {}
    for model in models:
        asked = Path("/") / model.rstrip("/")
        beside = sorted((root / str(asked.parent).lstrip("/")).glob(f"models--*--{asked.name}"))
        for directory in (asked, *(asked.parent / each.name for each in beside)):
            revision = read_line(root / str(directory).lstrip("/") / "refs/main")
            snapshot = directory / "snapshots" / revision
            if revision and "/" not in revision and (root / str(snapshot).lstrip("/")).is_dir():
                found[str(directory)] = str(snapshot)
    return found


def _table(file: Path, *, skip: int = 0) -> list[list[str]]:
    """The words of each line of a kernel's table; none where it cannot be read."""
    try:
        lines = file.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return []
    return [line.split() for line in lines[skip:]]
