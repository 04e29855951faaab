"""What users may set beside flags: settings with their contract variables.

Job scripts export some of these variables whatever the user wants; exactly those texts count as not set.
"""

from __future__ import annotations

from disagg_run.client_variables import CLIENT_VARIABLES
from disagg_run.declarations import Setting
from disagg_run.router_policies import router_policies
from disagg_run.settable_ports import port_setting

#: What job scripts export for every engine.
CONTRACT_UNREAD = {
    **CLIENT_VARIABLES,
    "ENABLE_METRICS": "servers give Prometheus metrics under /metrics in any case, and the router on a port of its own",
}

ENGINE = (
    port_setting("server_port", "HTTP port of servers (2584)", "SERVER_PORT"),
    Setting(
        name="device",
        type="str",
        summary="what servers compute on (GPUs of the node's maker)",
        choices=("amd", "nvidia", "cpu"),
    ),
    Setting(
        name="block_size", type="int", summary="tokens in one block of the KV cache", flag="--block-size", minimum=1
    ),
    Setting(
        name="gpu_memory_utilization",
        type="float",
        summary="share of each GPU's memory that the engine may use, 0 to 1",
        flag="--gpu-memory-utilization",
        minimum=0,
        maximum=1,
    ),
    Setting(name="kv_cache_dtype", type="str", summary="number format of the KV cache"),
    Setting(
        name="max_model_len", type="str", summary="longest request in tokens, prompt and completion; 32K is allowed"
    ),
    Setting(name="max_num_seqs", type="int", summary="requests in one batch", flag="--max-num-seqs", minimum=1),
    Setting(name="max_num_batched_tokens", type="str", summary="tokens in one batch; 4K is allowed"),
    Setting(name="prefix_caching", type="bool", summary="whether KV of equal beginnings is used again"),
    Setting(
        name="agentic",
        type="bool",
        summary="whether the load is long conversations that come again: keeps the prefix cache",
        env={"IS_AGENTIC": None},
        unset_values=("0",),
    ),
    Setting(
        name="dp_hybrid",
        type="bool",
        summary="whether each node of a data-parallel worker over nodes serves HTTP for its own ranks (only the first)",
    ),
    Setting(name="all2all_backend", type="str", summary="how experts on several GPUs exchange tokens"),
    Setting(
        name="server_timeout_s",
        type="float",
        summary="seconds from its start in which a server must be ready (3600)",
        minimum=1,
    ),
    Setting(
        name="router_timeout_s",
        type="float",
        summary="seconds from its start in which the router must be ready (1800)",
        minimum=1,
    ),
    port_setting("prometheus_port", "port of the router's metrics (29000)"),
    *router_policies(),
    Setting(
        name="router_type",
        type="str",
        summary="router in front of the servers",
        env={"ROUTER_TYPE": None},
        choices=("vllm-router",),
    ),
)

#: For every connector: how nodes reach each other's KV.
TRANSFER = (
    Setting(
        name="rdma_route",
        type="bool",
        summary="whether a route to the RDMA network is set where its links are of two addresses, 192.168.* (true)",
    ),
)

MORIIO = (
    *TRANSFER,
    Setting(
        name="read_mode",
        type="bool",
        summary="whether decode reads KV from prefill (true), or prefill writes it (false)",
        env={"VLLM_MORIIO_CONNECTOR_READ_MODE": None},
    ),
    port_setting("discovery_port", "port of the router on which servers register (36367)", "PROXY_PING_PORT"),
    Setting(
        name="router_address",
        type="str",
        summary="address of a router that is not of this launch, for servers to register with (rank 0's node)",
    ),
    port_setting("handshake_port", "first port on which servers wait for KV handshakes (6301)"),
    port_setting("notify_port", "first port on which servers are told of transfers (61005)"),
    Setting(
        name="moriio_backend",
        type="str",
        summary="what carries KV, from vLLM 0.22.0",
        choices=("rdma", "xgmi"),
    ),
    Setting(name="qp_per_transfer", type="int", summary="queue pairs that one transfer uses", minimum=1),
    Setting(
        name="post_batch_size",
        type="int",
        summary="work requests that are posted at once; -1 = all",
        minimum=-1,
    ),
    Setting(name="num_workers", type="int", summary="threads that post transfers", minimum=1),
    Setting(
        name="qp_max_send_wr",
        type="int",
        summary="send work requests that a queue pair holds (16384)",
        env={"MORI_IO_QP_MAX_SEND_WR": None},
        minimum=1,
    ),
    Setting(
        name="sq_backoff_timeout_us",
        type="int",
        summary="microseconds that a full send queue is waited for (50000)",
        env={"MORI_IO_SQ_BACKOFF_TIMEOUT_US": None},
        minimum=1,
    ),
    Setting(
        name="rdma_traffic_class",
        type="int",
        summary="RDMA traffic class of KV transfers",
        env={"MORI_RDMA_TC": None},
        minimum=0,
        maximum=255,
    ),
)

NIXL = (
    *TRANSFER,
    port_setting(
        "side_channel_port",
        "first port on which servers exchange NIXL's metadata (5600)",
        "VLLM_NIXL_SIDE_CHANNEL_PORT",
    ),
    Setting(
        name="kv_buffer_device",
        type="str",
        summary="memory from which KV is sent and into which it comes (that of the device)",
        choices=("cuda", "xpu", "cpu"),
    ),
    Setting(name="nixl_backends", type="list", summary="NIXL's transports, in order of preference (UCX)"),
)

SHARED_STORAGE = (
    Setting(
        name="shared_storage_path",
        type="str",
        summary="directory that all servers share and that holds KV; KV of earlier runs in it is removed"
        " (/tmp/disagg-run-kv)",
    ),
)
