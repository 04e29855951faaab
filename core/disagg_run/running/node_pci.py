"""Which GPUs an RDMA device is closest to: those with which it shares the longest way through the PCI tree."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

#: Parts of a path below /sys/devices, from the root complex down to the device.
_Way = tuple[str, ...]


def near_gpus(root: Path, devices: Mapping[str, Path], gpus: tuple[str, ...]) -> dict[str, tuple[int, ...]]:
    """GPUs by index for each of ``devices``, RDMA devices by name with their PCI device's place in sysfs.

    ``gpus``: PCI addresses (``0000:c1:00.0``) in the order of the GPUs' indexes. Empty where one of them is not found,
    or has no device under its own root complex: then nothing is known of the others either.
    """
    ways = {name: _way(place) for name, place in devices.items()}
    near: dict[str, list[int]] = {name: [] for name in devices}
    for index, address in enumerate(gpus):
        own = _way(root / "sys/bus/pci/devices" / address)
        shared = {name: _shared(own, way) for name, way in ways.items()}
        most = max(shared.values(), default=0)
        if not most:
            return {}
        for name, length in shared.items():
            if length == most:
                near[name].append(index)
    return {name: tuple(indexes) for name, indexes in near.items()}


def _way(place: Path) -> _Way:
    parts = os.path.realpath(place).split(os.sep)
    at = next((index for index, part in enumerate(parts) if part.startswith("pci")), len(parts))
    return tuple(parts[at:]) if place.exists() else ()


def _shared(one: _Way, other: _Way) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((index for index, (mine, theirs) in pairs if mine != theirs), min(len(one), len(other)))
