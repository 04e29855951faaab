"""UCX and RIXL (AMD's NIXL) as the public images have them, and NIXL's side channel.

MoRI-IO needs none of it; the public launcher sets it for every server, so that a connector of NIXL's that is configured
beside it (for offloading, say) finds the same place.
"""

from __future__ import annotations

from collections.abc import Iterator

from disagg_run.context import ProcessContext
from disagg_run.records import EnvSetting
from disagg_run.sources import Layer, Source
from disagg_vllm import rdma
from disagg_vllm.devices import is_amd

SIDE_CHANNEL_PORT = 5600

#: Values of the public recipes.
UCX = {
    "RIXL_HOME": "/usr/local/rixl",
    "UCX_HOME": "/usr/local/ucx",
    "UCX_LOG_LEVEL": "warn",
    "UCX_MEMTYPE_CACHE": "y",
    "UCX_RNDV_SCHEME": "get_zcopy",
    "UCX_RNDV_THRESH": "4k",
    "UCX_ROCM_IPC_MIN_ZCOPY": "0",
    "UCX_SOCKADDR_TLS_PRIORITY": "tcp",
}
#: Transports of the public recipes, which do not move KV by UCX.
PUBLIC_TLS = "tcp,self,shm,rocm_ipc,rocm_copy,cma"
#: UCX takes those of the list alone, and of them what UCX_NET_DEVICES has: without rc an RDMA device carries nothing.
RDMA_TLS = f"rc,{PUBLIC_TLS}"

#: In the order in which they are searched.
PATH = ("/usr/local/ucx/bin", "/usr/local/bin/etcd", "/root/.cargo/bin")
LIBRARIES = ("/usr/local/ucx/lib", "/usr/local/rixl/lib", "/usr/local/rixl/lib/x86_64-linux-gnu")


def environment(ctx: ProcessContext, plugin: str, *, transports: str = RDMA_TLS) -> Iterator[EnvSetting]:
    """The variables of a server; ``plugin`` is the connector that sets them, with UCX's ``transports``."""

    def own(why: str) -> Source:
        return Source(layer=Layer.CONNECTOR, plugin=plugin, why=why)

    address, why = rdma.data_address(ctx)
    yield EnvSetting("VLLM_NIXL_SIDE_CHANNEL_HOST", address, source=own(why), per_node=True)
    if not is_amd(ctx):
        return
    for name, value in {**UCX, "UCX_TLS": transports}.items():
        yield EnvSetting(name, value)
    for name, directories in (("PATH", PATH), ("LD_LIBRARY_PATH", LIBRARIES)):
        # The last one that is prepended stands first.
        for directory in reversed(directories):
            yield EnvSetting(name, directory, op="prepend")
    index, why = rdma.gid_index(ctx)
    yield EnvSetting("UCX_IB_GID_INDEX", str(index), source=own(why))
    devices, source = rdma.devices(ctx)
    if devices:
        yield EnvSetting("UCX_NET_DEVICES", f"{devices[0]}:1", source=source)
