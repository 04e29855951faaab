"""RDMA devices and GPUs of a node, from the kernel's own files."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal

from disagg_run.facts import Nic
from disagg_run.running.node_pci import near_gpus

_KFD_NODES = "sys/class/kfd/kfd/topology/nodes"


def nics(root: Path, addresses: Mapping[str, tuple[str, ...]]) -> tuple[Nic, ...]:
    """The RDMA devices under ``/sys/class/infiniband``, in the order of their numbers.

    ``addresses``: those of the node's network devices. State and GIDs are of port 1: one device a port is the rule.
    """
    found = []
    devices = sorted(_children(root / "sys/class/infiniband"), key=lambda each: _natural(each.name))
    near = near_gpus(root, {device.name: device / "device" for device in devices}, gpu_addresses(root))
    for device in devices:
        netdev = _netdev(device)
        found.append(
            Nic(
                name=device.name,
                driver=_driver(device),
                state=read_line(device / "ports/1/state").rpartition(":")[2].strip(),
                netdev=netdev,
                addresses=addresses.get(netdev, ()),
                gids=_gids(device / "ports/1/gids"),
                gpus=near.get(device.name, ()),
            )
        )
    return tuple(found)


def gpus(root: Path) -> tuple[int | None, Literal["amd", "nvidia", ""]]:
    """How many GPUs this process can see, and whose; (None, "") = nothing says so."""
    nodes = _children(root / _KFD_NODES)
    if nodes and (root / "dev/kfd").exists():
        return len(_amd_gpus(root)), "amd"
    cards = _children(root / "proc/driver/nvidia/gpus")
    if cards:
        return len(cards), "nvidia"
    return None, ""


def gpu_addresses(root: Path) -> tuple[str, ...]:
    """The PCI addresses of the GPUs in the order in which drivers count them; () = not all are known."""
    found = []
    for node in _amd_gpus(root):
        properties = dict(line.split()[:2] for line in read_lines(node / "properties") if len(line.split()) > 1)
        domain, place = properties.get("domain", ""), properties.get("location_id", "")
        if not (domain.isdigit() and place.isdigit()):
            return ()
        bus, slot, function = int(place) >> 8 & 0xFF, int(place) >> 3 & 0x1F, int(place) & 7
        found.append(f"{int(domain):04x}:{bus:02x}:{slot:02x}.{function}")
    return tuple(found) or tuple(card.name.lower() for card in _children(root / "proc/driver/nvidia/gpus"))


def _amd_gpus(root: Path) -> list[Path]:
    """Every CPU is a node too, of GPU id 0; a GPU that a container may not use has an id that cannot be read."""
    nodes = sorted(_children(root / _KFD_NODES), key=lambda each: _natural(each.name))
    return [node for node in nodes if read_line(node / "gpu_id") not in ("", "0")]


def read_lines(file: Path) -> list[str]:
    """A file's lines; none where it cannot be read."""
    try:
        return file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


def read_line(file: Path) -> str:
    """A file's first line without blanks at its ends; "" where it cannot be read."""
    try:
        return file.read_text(encoding="utf-8", errors="replace").partition("\n")[0].strip()
    except OSError:
        return ""


def _driver(device: Path) -> str:
    # The link's target need not exist: in a container /sys/bus may be hidden.
    try:
        return Path((device / "device/driver").readlink()).name
    except OSError:
        return ""


def _netdev(device: Path) -> str:
    """The network device behind port 1: as the GID table says, else the only one of the adapter."""
    named = read_line(device / "ports/1/gid_attrs/ndevs/0")
    if named:
        return named
    behind = _children(device / "device/net")
    return behind[0].name if len(behind) == 1 else ""


def _gids(directory: Path) -> dict[int, str]:
    found = {}
    for entry in _children(directory):
        if not entry.name.isdigit():
            continue
        try:
            gid = ipaddress.IPv6Address(read_line(entry))
        except ValueError:  # an index without an entry cannot be read
            continue
        if not gid.is_unspecified:
            found[int(entry.name)] = gid.exploded
    return dict(sorted(found.items()))


def _children(directory: Path) -> list[Path]:
    try:
        return sorted(directory.iterdir())
    except OSError:
        return []


def _natural(name: str) -> tuple[tuple[str, int], ...]:
    """A key by which ``mlx5_2`` comes before ``mlx5_10``."""
    parts: Iterable[tuple[str, str]] = re.findall(r"(\D*)(\d*)", name)
    return tuple((text, int(number or -1)) for text, number in parts)
