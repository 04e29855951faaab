"""What the engine's container needs on a node, by the kind of its GPUs and NICs (FACTS section 6)."""

from __future__ import annotations

from disagg_run.context import RankContext
from disagg_run.records import ContainerNeeds, Mount
from disagg_vllm import models
from disagg_vllm.devices import is_amd

_LIBRARIES = "/usr/lib/x86_64-linux-gnu"

#: By start of the NIC driver's name: the host's provider libraries, for the image's may not fit the kernel driver.
_PROVIDERS = {
    "ionic": (f"{_LIBRARIES}/libionic.so.1",),
    "bnxt": (f"{_LIBRARIES}/libbnxt_re.so",),
}
_VERBS = (f"{_LIBRARIES}/libibverbs.so.1", f"{_LIBRARIES}/libibverbs", "/etc/libibverbs.d")


def container_needs(ctx: RankContext) -> ContainerNeeds:
    """GPUs, NICs, limits, the model, and the host's RDMA libraries where the NIC asks for them."""
    drivers = {nic.driver for nic in ctx.facts.nics} if ctx.facts else set()
    providers = [files for start, files in _PROVIDERS.items() if any(each.startswith(start) for each in drivers)]
    libraries = (*_VERBS, *(file for files in providers for file in files)) if providers else ()
    model = mounted_dir(models.model_dir(ctx)[0])
    return ContainerNeeds(
        devices=("/dev/kfd", "/dev/dri", "/dev/infiniband") if is_amd(ctx) else ("/dev/infiniband",),
        groups=("video",) if is_amd(ctx) else (),
        ulimits={"memlock": "-1", "nofile": "1048576"},
        mounts=(
            Mount(source=model, target=model),
            *(Mount(source=file, target=file, optional=True) for file in libraries),
        ),
    )


def mounted_dir(path: str) -> str:
    """What must be mounted for a model: a snapshot of the Hugging Face cache is links into the directory above it."""
    repository, found, _ = path.partition("/snapshots/")
    return repository if found else path
