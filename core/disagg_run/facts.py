"""What a node has, as records; ``disagg_run.running`` gathers them, the planner only reads them."""

from __future__ import annotations

import contextlib
import ipaddress
from collections.abc import Iterable, Mapping
from typing import Literal

import attrs

from disagg_run.spec.model import as_tuple, frozen_map


@attrs.frozen(kw_only=True)
class Nic:
    """An RDMA device of a node."""

    #: Name under ``/sys/class/infiniband``: ``rdma0``, ``mlx5_0``.
    name: str
    #: Kernel driver: ``mlx5_core``, ``bnxt_en``, ``ionic``; "" = unknown.
    driver: str = ""
    #: Port state: ``ACTIVE``, ``DOWN``; "" = unknown.
    state: str = ""
    #: Network device behind it, and that device's addresses.
    netdev: str = ""
    addresses: tuple[str, ...] = attrs.field(default=(), converter=as_tuple)
    #: GID table: index -> GID.
    gids: Mapping[int, str] = attrs.field(factory=dict, converter=frozen_map)
    #: Indexes of the GPUs that it is closest to, which transfer libraries give it to; () = none, or unknown.
    gpus: tuple[int, ...] = attrs.field(default=(), converter=as_tuple)
    #: Network that it is on, by a name of the site's own: devices of different names have no route to each other (rails
    #: that are not joined). A node cannot see it, so it is written by hand. "" = unknown, and nothing is refused.
    network: str = ""

    @property
    def usable(self) -> bool:
        """Whether it may carry traffic: its port is up, or nobody knows."""
        return self.state in ("ACTIVE", "")

    @property
    def has_ipv4_gid(self) -> bool:
        """Whether a GID stands for an IPv4 address (RoCE v2 over IPv4)."""
        return any(address.ipv4_mapped is not None for address in self._gid_addresses().values())

    @property
    def routable_gids(self) -> frozenset[int]:
        """Indexes of the GIDs that reach beyond the link.

        Where one GID stands twice, only the last: Linux enters an address for RoCE v1, which no router passes on, and
        then for RoCE v2 (drivers/infiniband/core/roce_gid_mgmt.c).
        """
        last = {address: index for index, address in sorted(self._gid_addresses().items())}
        return frozenset(
            index
            for address, index in last.items()
            if not (address.is_link_local or address.is_unspecified or address.is_loopback)
        )

    def _gid_addresses(self) -> dict[int, ipaddress.IPv6Address]:
        addresses = {}
        for index, gid in self.gids.items():
            with contextlib.suppress(ValueError):  # an empty slot of the table
                addresses[index] = ipaddress.IPv6Address(gid)
        return addresses


@attrs.frozen(kw_only=True)
class NodeFacts:
    """What a node has. Unknown values are None or empty, never guessed."""

    hostname: str = ""
    #: Addresses by network device.
    addresses: Mapping[str, tuple[str, ...]] = attrs.field(factory=dict, converter=frozen_map)
    #: Network device of the default route; "" = none known.
    default_interface: str = ""
    #: GPUs; None = unknown.
    gpus: int | None = None
    gpu_vendor: Literal["amd", "nvidia", ""] = ""
    nics: tuple[Nic, ...] = attrs.field(default=(), converter=as_tuple)
    #: The kernel's ephemeral port range, first and last inclusive.
    ephemeral_ports: tuple[int, int] = (32768, 60999)
    #: Ports in LISTEN state before we start.
    listening_ports: tuple[int, ...] = attrs.field(default=(), converter=as_tuple)
    #: Memory of the node in bytes; None = unknown.
    memory_bytes: int | None = None
    #: ``docker`` or ``podman``; "" = none found.
    container_tool: str = ""
    #: Installed engine version; "" = unknown.
    engine_version: str = ""
    #: Targets of ``refs/main`` by model directory (a Hugging Face cache), and the like, by absolute path.
    links: Mapping[str, str] = attrs.field(factory=dict, converter=frozen_map)


def common_networks(nodes: Iterable[NodeFacts | None]) -> frozenset[str] | None:
    """The networks on which each of some nodes has an RDMA device that is up; None where one of them is not known."""
    common: frozenset[str] | None = None
    for facts in nodes:
        networks = frozenset(nic.network for nic in facts.nics if nic.usable) if facts else frozenset()
        if not networks or "" in networks:
            return None
        common = networks if common is None else common & networks
    return common
