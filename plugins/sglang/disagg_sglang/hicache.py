"""HiCache: KV that prefill's GPUs have no room for, in host memory and, behind it, in a Mooncake store.

The store is one Mooncake master on rank 0, a service, and a part of every prefill server's memory.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from disagg_run.context import ProcessContext, RankContext, host_port
from disagg_run.errors import SpecError
from disagg_run.option_flags import held_variable
from disagg_run.records import FIXED, Command, EnvSetting, Flag, Probe, ServiceProcess, flag
from disagg_run.settable_ports import settable
from disagg_run.sources import Source
from disagg_sglang import held, models, transfer

MASTER = "mooncake-master"
MASTER_PORT = 50061
METADATA_PORT = 8080
METRICS_PORT = 9003
#: Seconds in which the master must answer; it takes about one.
MASTER_TIMEOUT_S = 60.0


def enabled(ctx: RankContext) -> bool:
    """Whether prefill offloads KV to host memory."""
    return bool(ctx.setting("kv_offloading", role="prefill") == "dram")


def stored(ctx: RankContext) -> bool:
    """Whether a Mooncake store lies behind host memory."""
    return enabled(ctx) and ctx.setting("hicache_storage_backend", role="prefill") == "mooncake"


def server_flags(ctx: ProcessContext) -> Iterator[Flag]:
    """The page size, which both roles share, and what prefill needs beside it."""
    yield from _page_size(ctx)
    if not enabled(ctx) or ctx.process.role != "prefill":
        return
    yield flag("--enable-hierarchical-cache", source=ctx.source("kv_offloading"))
    yield held.prefix_cache(hicache=True)
    yield _size(ctx)
    yield _given(ctx, "--hicache-io-backend", "hicache_io_backend", "direct")
    layout = "page_first" if stored(ctx) else "page_first_direct"
    yield _given(ctx, "--hicache-mem-layout", "hicache_mem_layout", layout)
    yield _given(ctx, "--hicache-write-policy", "hicache_write_policy", "write_through")
    yield _given(ctx, "--hicache-storage-prefetch-policy", "hicache_prefetch_policy", "wait_complete")
    backend = ctx.setting("hicache_storage_backend")
    if backend is not None:
        setting = "hicache_storage_backend"
        yield flag("--hicache-storage-backend", backend, source=ctx.source(setting), option=f"settings.{setting}")
    if stored(ctx):
        yield _store_config(ctx)
        # The store's hits are seen nowhere else.
        yield flag("--enable-metrics")
        yield flag("--enable-cache-report")


def _page_size(ctx: ProcessContext) -> Iterator[Flag]:
    """One page size: the user's, else the model's, else with HiCache 1; the parser would take the last of two."""
    own, asked = models.body(ctx).page_size, _page_size_setting(ctx)
    if own is not None:
        yield flag("--page-size", own, source=ctx.table_source("page_size"))
    elif enabled(ctx) and asked is None:
        yield flag("--page-size", 1)
    if asked is not None:
        yield flag("--page-size", asked[0], source=asked[1])


def _page_size_setting(ctx: ProcessContext) -> tuple[int, Source] | None:
    size = ctx.setting("hicache_page_size")
    return None if size is None or not enabled(ctx) else (size, ctx.source("hicache_page_size"))


def _size(ctx: ProcessContext) -> Flag:
    """Host memory as a budget of gigabytes for each rank, or as a multiple of the GPU's KV memory."""
    budget = ctx.setting("total_cpu_dram_gb")
    if budget is None or ctx.setting("force_hicache_ratio", False):
        return _given(ctx, "--hicache-ratio", "hicache_ratio", 5)
    size, why = rank_gigabytes(ctx, budget)
    source = ctx.source("total_cpu_dram_gb")
    if size < 1:
        raise SpecError(
            f"{budget:g} GB of host memory ({source}) is {why}: less than a gigabyte",
            remedy="raise total_cpu_dram_gb, or leave it out and set hicache_ratio",
        )
    return flag("--hicache-size", size, source=Source(layer=source.layer, where=source.where, why=why))


def rank_gigabytes(ctx: ProcessContext, budget: float) -> tuple[int, str]:
    """Whole gigabytes (of 10^9 bytes, as the engine counts) for one rank's pool, and why.

    ``budget``: of the node; shared by the ranks of all its prefill servers, and by the pools of a rank.
    """
    ranks = len(ctx.process.gpus) * max(1, sum(name.startswith("prefill-") for name in ctx.servers))
    pools = max(1, ctx.setting("hicache_host_pool_count", 1))
    return int(budget / (ranks * pools)), f"{budget:g} GB over {ranks} ranks of the node, {pools} pool(s) each"


def _store_config(ctx: ProcessContext) -> Flag:
    master, address = ctx.peers[MASTER], ctx.first_node.address
    names, _ = transfer.devices(ctx, ctx.engine.name)
    config: dict[str, Any] = {
        "master_server_address": host_port(address, master["rpc"]),
        "protocol": ctx.setting("mc_protocol", "tcp"),
        "device_name": ",".join(names),
        # Of this node, never the head's: remote ranks would register a wrong address.
        "local_hostname": ctx.node.address,
        "global_segment_size": _segment_size(ctx),
        "metadata_server": f"http://{host_port(address, master['metadata'])}/metadata",
        "check_server": False,
    }
    named = {"protocol": "mc_protocol", "global_segment_size": "mc_global_segment_size"}
    sources = {key: source for key, name in named.items() if (source := ctx.set_by(name)) is not None}
    return Flag(
        "--hicache-storage-backend-extra-config",
        json=config,
        leaf_sources=sources,
        leaf_options={"master_server_address": FIXED, "metadata_server": FIXED},
        # Clients that tell each other where they are ask nobody.
        leaf_agreeing={"metadata_server": ("P2PHANDSHAKE",)},
        per_node=("local_hostname",),
    )


def _segment_size(ctx: ProcessContext) -> str:
    """Memory that the server gives to the store, in the form that SGLang 0.5.23 reads (mooncake_store.py).

    Raises SpecError for any other, which would end a server once its model is loaded, and for none at all.
    """
    text = str(ctx.setting("mc_global_segment_size", "64gb"))
    if re.fullmatch(r"0*[1-9][0-9]*( ?gb)?", text.strip().lower()) is None:
        raise SpecError(
            f"mc_global_segment_size is {text!r} ({ctx.source('mc_global_segment_size')}), which is no size above 0"
            " that the engine reads",
            remedy="write whole gigabytes, such as 64gb, or bytes without a unit",
        )
    return text


def server_variables(ctx: ProcessContext) -> Iterator[EnvSetting]:
    """Variables for the store's clients: of its configuration they read the host's name alone, over what it says."""
    if ctx.process.role != "prefill" or not stored(ctx):
        return
    yield from _UNREAD
    for name in ("MOONCAKE_LOCAL_HOSTNAME", "LOCAL_HOSTNAME"):
        yield EnvSetting(name, implied=True, per_node=True)


_UNREAD = tuple(
    held_variable(name, why="the store's configuration is in --hicache-storage-backend-extra-config")
    for name in (
        "MOONCAKE_CLIENT",
        "MOONCAKE_CONFIG_PATH",
        "MOONCAKE_DEVICE",
        "MOONCAKE_GLOBAL_SEGMENT_SIZE",
        "MOONCAKE_MASTER",
        "MOONCAKE_TE_META_DATA_SERVER",
        "SGLANG_HICACHE_MOONCAKE_CONFIG_PATH",
    )
)


#: Of its metadata server and its metrics. Booleans of its parser have their value in the same word.
_ALWAYS = tuple(
    Flag(name, (value,), joined=True)
    for name, value in (
        ("--enable_http_metadata_server", "true"),
        ("--enable_metric_reporting", "true"),
        ("--http_metadata_server_host", "0.0.0.0"),
    )
)


def services(ctx: RankContext) -> Iterator[ServiceProcess]:
    """The Mooncake master, on rank 0, before any server starts.

    Raises SpecError for a rank 0 with an IPv6 address: whatever it is told, the master's HTTP is IPv4 (0.3.13).
    """
    if ctx.rank != 0 or not stored(ctx):
        return
    if ":" in ctx.node.address:
        raise SpecError(
            f"the store's master would be on rank 0 ({ctx.node.address}), but mooncake_master serves HTTP by IPv4 only",
            remedy="name the nodes by IPv4 addresses, or leave hicache_storage_backend out",
        )
    flags = (
        *_ALWAYS,
        _port(ctx, "--http_metadata_server_port", "metadata", "mc_metadata_port"),
        _port(ctx, "--rpc_port", "rpc", "mc_master_port"),
        _given(ctx, "--rpc_thread_num", "mc_master_threads", 64),
        _port(ctx, "--metrics_port", "metrics", "mc_metrics_port"),
        _given(ctx, "--eviction_high_watermark_ratio", "mc_eviction_high_watermark", 0.95),
    )
    answers = Probe(kind="tcp", timeout_s=MASTER_TIMEOUT_S)
    health = Probe(kind="http", path="/health", timeout_s=MASTER_TIMEOUT_S)
    segments = Probe(kind="http", path="/get_all_segments", timeout_s=MASTER_TIMEOUT_S)
    yield ServiceProcess(
        name=MASTER,
        kind="service",
        command=Command(program=("mooncake_master",), flags=(*flags, *held.master_flags(ctx.node.address, flags))),
        listeners=(
            settable(ctx, "rpc", "mc_master_port", MASTER_PORT, role="prefill", probe=answers),
            settable(ctx, "metadata", "mc_metadata_port", METADATA_PORT, role="prefill", probe=health),
            settable(ctx, "metrics", "mc_metrics_port", METRICS_PORT, role="prefill", probe=segments),
        ),
    )


def _port(ctx: RankContext, name: str, listener: str, setting: str) -> Flag:
    return flag(name, f"{{port:{listener}}}", source=_set_by(ctx, setting), option=f"settings.{setting}")


def _set_by(ctx: RankContext, name: str) -> Source | None:
    """Who set a value of HiCache or its store, which belong to prefill; None = nobody."""
    return ctx.set_by(name, role="prefill")


def _given(ctx: RankContext, name: str, setting: str, default: object) -> Flag:
    value = ctx.setting(setting, default, role="prefill")
    return flag(name, f"{value:g}" if isinstance(value, float) else value, source=_set_by(ctx, setting))
