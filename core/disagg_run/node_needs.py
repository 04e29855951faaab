"""What every engine asks of a node, whatever it computes: its model, its GPUs, its RDMA devices and their libraries.

Engine plugins return these from ``disagg_container`` and ``disagg_preflight``, beside what is their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

from disagg_run.facts import Nic, NodeFacts
from disagg_run.records import ContainerNeeds, Mount, Preflight

#: Who made the GPUs; ``cpu`` = none are used.
Vendor = Literal["amd", "nvidia", "cpu"]

#: Device files by which a GPU driver shows itself; those of AMD a container must be given (ROCm's container guide).
_DRIVERS: dict[Vendor, tuple[str, ...]] = {"amd": ("/dev/kfd", "/dev/dri"), "nvidia": ("/dev/nvidiactl",), "cpu": ()}

_LIBRARIES = "/usr/lib/x86_64-linux-gnu"
#: By start of the NIC driver's name: the host's provider libraries, for the image's may not fit the kernel driver.
_PROVIDERS = {
    "ionic": (f"{_LIBRARIES}/libionic.so.1",),
    "bnxt": (f"{_LIBRARIES}/libbnxt_re.so",),
}
_VERBS = (f"{_LIBRARIES}/libibverbs.so.1", f"{_LIBRARIES}/libibverbs", "/etc/libibverbs.d")


def container_needs(facts: NodeFacts | None, *, vendor: Vendor, model: str) -> ContainerNeeds:
    """GPUs, NICs, limits, the directory ``model``, and the host's RDMA libraries where a NIC asks for them.

    ``model``: as ``model_to_mount`` of ``disagg_run.model_files`` gives it; "" = the user's mounts have it.
    """
    drivers = {nic.driver for nic in facts.nics} if facts else set()
    providers = [files for start, files in _PROVIDERS.items() if any(each.startswith(start) for each in drivers)]
    libraries = (*_VERBS, *(file for files in providers for file in files)) if providers else ()
    amd = vendor == "amd"
    return ContainerNeeds(
        devices=(*(_DRIVERS[vendor] if amd else ()), "/dev/infiniband"),
        groups=("video",) if amd else (),
        ulimits={"memlock": "-1", "nofile": "1048576"},
        mounts=(
            *([Mount(source=mounted_dir(model), target=mounted_dir(model))] if model else []),
            *(Mount(source=file, target=file, optional=True) for file in libraries),
        ),
    )


def mounted_dir(path: str) -> str:
    """What must be mounted for a model: a snapshot of the Hugging Face cache is links into the directory above it."""
    repository, found, _ = path.partition("/snapshots/")
    return repository if found else path


#: Names of the checks on a node, which an expert waives to be warned only.
MODEL_CHECK = "model"
DRIVER_CHECK = "gpu-driver"


def model_check(path: str) -> Preflight:
    """A check that the model is where the plan says."""
    return Preflight(
        name=MODEL_CHECK,
        kind="path_exists",
        target=path,
        remedy="put the model there, or name its place with --model-path or --model-dir",
    )


def driver_checks(vendor: Vendor) -> Iterator[Preflight]:
    """Checks that the GPUs' driver is loaded, and that the container has its devices."""
    for device in _DRIVERS[vendor]:
        yield Preflight(
            name=DRIVER_CHECK,
            kind="device_present",
            target=device,
            remedy="load the GPUs' driver, and give the device to the container",
        )


def nic_checks(devices: Iterable[str], *, required: bool = True) -> Iterator[Preflight]:
    """Checks that the RDMA devices that were named exist; ``required``: whether a run stops where one does not."""
    for device in devices:
        yield Preflight(
            name="ib-devices",
            kind="path_exists",
            target=f"/sys/class/infiniband/{device}",
            remedy="name the devices that the node has with --ib-devices",
            required=required,
        )


def forced_gid(nics: Sequence[Nic]) -> tuple[int, str] | None:
    """The GID index to force on devices where the automatic choice would take a link-local one, and why.

    Where a port has an IPv4 GID the transfer libraries find it; on ports with none they stop at index 0, which is
    link-local. None = leave the choice to them.
    """
    if not nics or any(not nic.gids or nic.has_ipv4_gid for nic in nics):
        return None
    common = frozenset.intersection(*(nic.routable_gids for nic in nics))
    if not common:
        return None
    names = ", ".join(nic.name for nic in nics)
    return min(common), f"first GID that is routable on {names}; index 0 is link-local"
