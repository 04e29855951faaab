"""KV transfer by Mooncake: ``atom-mooncake``, the connector that ATOM brings.

The engine reads ``kv_role, handshake_port, http_port, protocol, ib_device, num_worker_threads`` of the configuration.
What has no setting here is merged by key from the user's flags: ``--kv-transfer-config '{"num_worker_threads": 8}'``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from disagg_atom import settings
from disagg_run import rdma
from disagg_run.context import ProcessContext, RankContext
from disagg_run.declarations import Extension, SharedValue
from disagg_run.facts import Nic
from disagg_run.hookspecs import hookimpl
from disagg_run.node_needs import forced_gid
from disagg_run.records import FIXED, EnvSetting, Flag, Listener, Preflight
from disagg_run.settable_ports import settable
from disagg_run.sources import Layer, Source
from disagg_run.spec.model import Role

NAME = "atom-mooncake"

HANDSHAKE_PORT = 6301
#: Name of the check of the transfer engine's libraries.
LIBRARY_CHECK = "mooncake-libraries"
#: Where the engine's image has the transfer engine's libraries; another Python in the image moves them.
LIBRARIES = "/opt/venv/lib/python3.10/site-packages/mooncake"

#: Under these names Mooncake, RCCL and UCX each read the GID index; left alone, they take a link-local one on ports
#: without an IPv4 GID (ROCm/ATOM#1748).
GID_VARIABLES = ("MC_GID_INDEX", "NCCL_IB_GID_INDEX", "UCX_IB_GID_INDEX")


#: What the engine takes to carry KV where it is not told.
DEFAULT_PROTOCOL = "rdma"

_DEVICE = "settings.ib_device"
#: What the configuration by hand may not change. ``http_port`` is a label of the server's own port.
_HELD = {
    "kv_role": FIXED,
    "kv_connector": "connector",
    "proxy_ip": "nodes",
    "handshake_port": "settings.handshake_port",
    "http_port": FIXED,
    "protocol": "settings.mooncake_protocol",
}


def protocol(ctx: RankContext, role: Role) -> tuple[str, Source]:
    """What carries the KV of a role, and who says so."""
    value = str(ctx.setting("mooncake_protocol", DEFAULT_PROTOCOL, role=role))
    return value, ctx.set_by("mooncake_protocol", role=role) or Source(layer=Layer.CONNECTOR, plugin=NAME)


PARITY = (SharedValue(name="kv-protocol", computed=protocol, why="KV goes from one transfer engine to the other"),)


@hookimpl
def disagg_plugin() -> Extension:
    return Extension(
        name=NAME,
        summary="KV transfer between ATOM servers by Mooncake over RDMA or TCP",
        kind="connector",
        engines=("atom-disagg",),
        settings=settings.MOONCAKE,
        parity=PARITY,
        waivable={LIBRARY_CHECK: "an image without the transfer engine's libraries at their usual place"},
    )


@hookimpl
def disagg_readiness(ctx: ProcessContext) -> Iterable[Listener]:
    return [handshake(ctx)] if ctx.process.role == "prefill" else ()


@hookimpl
def disagg_args(ctx: ProcessContext) -> Iterable[Flag]:
    if ctx.process.role is None:
        return ()
    if ctx.setting("mooncake_protocol") != "tcp":
        names = tuple(nic.name for nic in selected_nics(ctx))
        remedy = "let both use one device by --set ib_device=NAME, or carry KV by --set mooncake_protocol=tcp"
        rdma.check_meeting(ctx, names, remedy=remedy)
    return [transfer_config(ctx)]


@hookimpl
def disagg_env(ctx: ProcessContext) -> Iterable[EnvSetting]:
    return tuple(environment(ctx))


@hookimpl
def disagg_preflight(ctx: RankContext) -> Iterable[Preflight]:
    return [library_check(ctx)]


def handshake(ctx: ProcessContext) -> Listener:
    """Prefill's handshake ports, one for each GPU process: base + pp * (dp * tp) + dp * tp + tp of their indexes.

    Decode asks there and listens nowhere. DP attention only turns TP ranks into DP ranks, the count stays.
    """
    role = ctx.role_spec
    return settable(
        ctx,
        "handshake",
        "handshake_port",
        HANDSHAKE_PORT,
        count=role.pp * role.dp * (role.tp or 1),
        flag="--kv-transfer-config",
        flag_key=("handshake_port",),
    )


def transfer_config(ctx: ProcessContext) -> Flag:
    """The connector's JSON. The engine does not read ``proxy_ip``: it tells a reader which node a server is for."""
    own, first_prefill = ctx.ports.get("handshake"), ctx.heads[0]
    config: dict[str, Any] = {
        "kv_role": "kv_producer" if ctx.process.role == "prefill" else "kv_consumer",
        "kv_connector": "mooncake",
        "proxy_ip": ctx.node.address,
        "handshake_port": own if own is not None else first_prefill.ports["handshake"],
    }
    sources = {}
    if ctx.set_by("handshake_port"):
        sources["handshake_port"] = ctx.source("handshake_port")
    if ctx.spec.nodes:
        sources["proxy_ip"] = ctx.spec.source("nodes")
    for key, setting in (("ib_device", "ib_device"), ("protocol", "mooncake_protocol")):
        if ctx.setting(setting) is not None:
            config[key] = ctx.setting(setting)
            sources[key] = ctx.source(setting)
    return Flag(
        "--kv-transfer-config",
        json=config,
        leaf_sources=sources,
        leaf_options={**_HELD, "ib_device": _DEVICE} if named_devices(ctx)[0] else _HELD,
        leaf_agreeing=_agreeing(ctx, config),
        remark=device_remark(ctx),
    )


def _agreeing(ctx: ProcessContext, config: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """What a configuration by hand may say although the plan's does not."""
    agreeing: dict[str, tuple[str, ...]] = {"http_port": (str(ctx.ports["http"]),)}
    if "protocol" not in config:
        agreeing["protocol"] = (DEFAULT_PROTOCOL,)
    if "ib_device" not in config:
        agreeing["ib_device"] = named_devices(ctx)[0]
    return agreeing


def device_remark(ctx: ProcessContext) -> str:
    """What the node's facts have against the RDMA devices; "" = nothing.

    No error: the engine takes no list, and finds devices itself; with none it falls back to TCP, or fails late.
    """
    nics = {nic.name: nic for nic in ctx.facts.nics} if ctx.facts and not ctx.spec.simulate else {}
    here = f"rank {ctx.rank} ({ctx.node.name or ctx.node.address})"
    states = ", ".join(f"{nic.name} is {nic.state or 'of unknown state'}" for nic in nics.values())
    named, source = named_devices(ctx)
    for name in named if nics else ():
        if name not in nics or not nics[name].usable:
            return f"RDMA device {name!r} ({source}) is not up on {here}: {states}"
    if nics and not named and all(nic.state == "DOWN" for nic in nics.values()):
        return f"no RDMA device is up on {here}: {states}"
    return ""


def named_devices(ctx: ProcessContext) -> tuple[tuple[str, ...], Source]:
    """The devices that were named, and by whom; () = none, the engine chooses."""
    device = ctx.setting("ib_device")
    if device is not None:
        return (device,), ctx.source("ib_device")
    return ctx.spec.ib_devices, ctx.spec.source("ib_devices")


def environment(ctx: ProcessContext) -> Iterator[EnvSetting]:
    """Where the libraries are, and for servers the address and GID by which peers reach their KV."""
    yield EnvSetting("LD_LIBRARY_PATH", library_dir(ctx), op="prepend", source=ctx.set_by("mooncake_library_dir"))
    if ctx.process.kind != "server":
        return
    address, why = data_address(ctx)
    yield EnvSetting("ATOM_HOST_IP", address, source=_own(why), per_node=True)
    named, by = named_devices(ctx)
    if len(named) == 1:
        # The engine reads it in the place of ib_device.
        yield EnvSetting("ATOM_MOONCAKE_IB_DEVICE", named[0], option=_DEVICE, implied=True, source=by)
    chosen = forced_gid(selected_nics(ctx))
    if chosen is not None:
        index, why = chosen
        for name in GID_VARIABLES:
            yield EnvSetting(name, str(index), source=_own(why))


def data_address(ctx: ProcessContext) -> tuple[str, str]:
    """The address that a server gives its peers for KV, and why.

    Left to itself the engine asks for the route to 8.8.8.8 and takes 0.0.0.0 where there is none. So it is always told:
    the address of the chosen RDMA device where the node's facts have one, else the node's own.
    """
    return rdma.data_address(ctx, next(iter(named_devices(ctx)[0]), None))


def selected_nics(ctx: ProcessContext) -> tuple[Nic, ...]:
    """The devices that may carry KV, as far as they are known: those named, else all that are up."""
    names, _ = named_devices(ctx)
    if names:
        return rdma.known_nics(ctx, names)
    return tuple(nic for nic in (ctx.facts.nics if ctx.facts else ()) if nic.usable)


def library_dir(ctx: RankContext) -> str:
    """Directory of the image with the transfer engine's libraries."""
    return str(ctx.setting("mooncake_library_dir", LIBRARIES))


def library_check(ctx: RankContext) -> Preflight:
    """An image with another Python has them elsewhere; the engine may still find them by itself, so this only warns."""
    return Preflight(
        name=LIBRARY_CHECK,
        kind="path_exists",
        target=library_dir(ctx),
        remedy="name their directory with --set mooncake_library_dir=…",
        required=False,
    )


def _own(why: str = "") -> Source:
    return Source(layer=Layer.CONNECTOR, plugin=NAME, why=why)
