"""What users may set beside flags: settings with their contract variables.

Job scripts export some of these variables whatever the user wants; exactly those texts count as not set.
"""

from __future__ import annotations

from disagg_run.declarations import Setting
from disagg_run.router_policies import router_policies
from disagg_run.settable_ports import port_setting

#: The same for variables that the core reads.
CONTRACT_UNSET = {"ROUTER_PORT": ("30000",)}

_SERVER = (
    port_setting("server_port", "HTTP port of servers (8000)"),
    port_setting("bootstrap_port", "port on which a prefill worker's bootstrap server waits (8998)"),
    port_setting("dist_init_port", "port on which the nodes of one worker meet (20000)"),
    Setting(
        name="enable_metrics",
        type="bool",
        summary="whether servers give Prometheus metrics under /metrics",
        env={"ENABLE_METRICS": None},
        unset_values=("0",),
    ),
    Setting(
        name="agentic",
        type="bool",
        summary="whether the load is long conversations that come again: keeps the prefix cache",
        env={"IS_AGENTIC": None},
        unset_values=("0",),
    ),
    Setting(
        name="run_eval",
        type="bool",
        summary="whether answers are judged: leaves out what buys speed with wrong answers",
        env={"RUN_EVAL": None, "EVAL_ONLY": None},
        unset_values=("0",),
    ),
    Setting(
        name="server_timeout_s",
        type="float",
        summary="seconds from its start in which a server, or the router, must be ready (the model's, else 1800)",
        env={"SYNC_BARRIER_TIMEOUT": None},
        minimum=1,
    ),
    Setting(
        name="aiter_dir",
        type="str",
        summary="directory of the image with AITER's Python package (/sgl-workspace/aiter)",
    ),
    Setting(
        name="rdma_traffic_class",
        type="int",
        summary="traffic class that MoRI marks RDMA packets with; left out = the NIC's default",
        env={"MORI_RDMA_TC": None},
        # The field of a packet's global route header has 8 bits (InfiniBand specification, GRH).
        minimum=0,
        maximum=255,
    ),
)

_ROUTER = (
    Setting(
        name="canary_timeout_s",
        type="float",
        summary="seconds from the router's start until a generation through it must have come (600)",
        env={"ROUTER_CANARY_TIMEOUT": None},
        minimum=1,
    ),
    port_setting("prometheus_port", "port of the router's metrics (29000)"),
    *router_policies(prefill="policy among prefill workers; in an agentic run that of the router"),
    Setting(
        name="router_policy_flags",
        type="str",
        summary="router flags in place of all policy flags, as one text",
        env={"ROUTER_POLICY_FLAGS": None},
    ),
    Setting(
        name="router_cb_args",
        type="str",
        summary="router flags in place of the circuit breaker's and the retries', as one text",
        env={"ROUTER_CB_ARGS": None},
    ),
    Setting(
        name="router_resilience_flags",
        type="str",
        summary="router flags in place of those for health checks of an agentic run, as one text",
        env={"ROUTER_RESILIENCE_FLAGS": None},
    ),
)

_HICACHE = (
    Setting(
        name="kv_offloading",
        type="str",
        summary="where KV goes that the GPUs have no room for; dram = host memory (HiCache), on prefill",
        env={"KV_OFFLOADING": None},
        choices=("dram",),
    ),
    Setting(
        name="kv_offload_backend",
        type="str",
        summary="who offloads KV (hicache)",
        env={"KV_OFFLOAD_BACKEND": None},
        choices=("hicache",),
    ),
    Setting(
        name="hicache_ratio",
        type="float",
        summary="host memory for KV as a multiple of the GPUs' (5)",
        env={"HICACHE_RATIO": None},
        # SGLang 0.5.23 needs more than 0 (pool_host/base.py); no node has memory for a thousand GPUs' pools.
        minimum=0.01,
        maximum=1000,
    ),
    Setting(
        name="total_cpu_dram_gb",
        type="float",
        summary="gigabytes of a node's host memory for KV, over all its prefill GPUs; counts instead of the ratio",
        env={"TOTAL_CPU_DRAM_GB": None},
        unset_values=("0",),
        # Whole gigabytes for each rank, as --hicache-size has them; bytes by mistake are more than any node has.
        minimum=1,
        maximum=100_000,
    ),
    Setting(
        name="force_hicache_ratio",
        type="bool",
        summary="whether the ratio counts even where a budget is given",
        env={"FORCE_HICACHE_RATIO": None},
        unset_values=("0",),
    ),
    Setting(
        name="hicache_host_pool_count",
        type="int",
        summary="pools of one rank in host memory that share the budget (1)",
        env={"HICACHE_HOST_POOL_COUNT": None},
        minimum=1,
    ),
    Setting(
        name="hicache_page_size",
        type="int",
        summary="tokens in one page of the KV cache, for both roles (the model's, else 1)",
        env={"HICACHE_PAGE_SIZE": None},
        minimum=1,
    ),
    Setting(
        name="hicache_io_backend",
        type="str",
        summary="who copies between host and GPU (direct)",
        env={"HICACHE_IO_BACKEND": None},
    ),
    Setting(
        name="hicache_mem_layout",
        type="str",
        summary="layout of KV in host memory (page_first_direct; page_first with a store)",
        env={"HICACHE_MEM_LAYOUT": None},
    ),
    Setting(
        name="hicache_write_policy",
        type="str",
        summary="when KV is written to the host (write_through)",
        env={"HICACHE_WRITE_POLICY": None},
    ),
    Setting(
        name="hicache_prefetch_policy",
        type="str",
        summary="how long prefill waits for KV from the store (wait_complete)",
        env={"HICACHE_PREFETCH_POLICY": None},
    ),
    Setting(
        name="hicache_storage_backend",
        type="str",
        summary="store behind host memory; mooncake is started with the launch",
        env={"HICACHE_STORAGE_BACKEND": None},
    ),
)

_STORE = (
    port_setting("mc_master_port", "RPC port of the Mooncake master (50061)", "MC_MASTER_PORT"),
    port_setting("mc_metadata_port", "HTTP port of the Mooncake master's metadata (8080)", "MC_METADATA_PORT"),
    port_setting("mc_metrics_port", "HTTP port of the Mooncake master's metrics (9003)", "MC_METRICS_PORT"),
    Setting(name="mc_protocol", type="str", summary="how the store moves KV (tcp)", env={"MC_PROTOCOL": None}),
    Setting(
        name="mc_global_segment_size",
        type="str",
        summary="memory that each prefill server gives to the store: whole gigabytes, as 64gb, or bytes (64gb)",
        env={"MC_GLOBAL_SEG": None},
    ),
    Setting(
        name="mc_master_threads",
        type="int",
        summary="RPC threads of the Mooncake master (64)",
        env={"MC_MASTER_THREADS": None},
        # 0 would be the deprecated --max_threads; mooncake_master 0.3.13 dies where the system has not so many.
        minimum=1,
        maximum=4096,
    ),
    Setting(
        name="mc_eviction_high_watermark",
        type="float",
        summary="share of the store's memory in use from which it evicts, 0 to 1 (0.95)",
        env={"MC_EVICTION_HIGH_WATERMARK": None},
        # mooncake_master 0.3.13 dies of any other (master_service.cpp).
        minimum=0,
        maximum=1,
    ),
)

ENGINE = (*_SERVER, *_ROUTER, *_HICACHE, *_STORE)

MORI = (
    Setting(
        name="mori_qp_max_send_wr",
        type="int",
        summary="work requests that wait in one queue pair (the model's, else 16384)",
        env={"MORI_IO_QP_MAX_SEND_WR": None},
        minimum=1,
    ),
    Setting(
        name="mori_sq_backoff_timeout_us",
        type="int",
        summary="microseconds for which a full send queue is waited for (50000)",
        env={"MORI_IO_SQ_BACKOFF_TIMEOUT_US": None},
        minimum=1,
    ),
)
