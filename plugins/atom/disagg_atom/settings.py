"""What users may set beside flags: settings with their contract variables.

Job scripts export some of these variables whatever the user wants; exactly those texts count as not set.
"""

from __future__ import annotations

from disagg_run.client_variables import CLIENT_VARIABLES
from disagg_run.declarations import Setting
from disagg_run.router_policies import router_policies
from disagg_run.settable_ports import port_setting

#: The same for variables that the core reads.
CONTRACT_UNSET = {"ROUTER_PORT": ("30000",)}

_MORI = "of KV transfers by MoRI, which ATOM does not use"

#: What job scripts export for every engine.
CONTRACT_UNREAD = {
    **CLIENT_VARIABLES,
    "MORI_RDMA_TC": _MORI,
    "MORI_IO_QP_MAX_SEND_WR": _MORI,
    "MORI_IO_SQ_BACKOFF_TIMEOUT_US": _MORI,
}

ENGINE = (
    port_setting("prefill_port", "HTTP port of prefill servers (8010)", "PREFILL_PORT", unset="8010"),
    port_setting("decode_port", "HTTP port of decode servers (8020)", "DECODE_PORT", unset="8020"),
    Setting(
        name="gpu_memory_utilization",
        type="float",
        summary="share of each GPU's memory that the engine may use, 0 to 1",
        env={"MEM_FRAC_STATIC": None},
        unset_values=("0.85",),
        flag="--gpu-memory-utilization",
        minimum=0,
        maximum=1,
    ),
    Setting(
        name="kv_cache_dtype",
        type="str",
        summary="number format of the KV cache",
        env={"KV_CACHE_DTYPE": None},
        unset_values=("fp8",),
        choices=("bf16", "fp8"),
    ),
    Setting(
        name="block_size",
        type="int",
        summary="tokens in one block of the KV cache",
        env={"BLOCK_SIZE": None},
        unset_values=("16",),
        flag="--block-size",
        minimum=1,
    ),
    Setting(
        name="max_num_seqs",
        type="int",
        summary="requests in one batch; the variable sizes decode only where no concurrency is given",
        env={"MAX_NUM_SEQS": None},
        unset_values=("256",),
        flag="--max-num-seqs",
        minimum=1,
    ),
    Setting(
        name="max_model_len",
        type="int",
        summary="longest request in tokens, prompt and completion",
        env={"MAX_MODEL_LEN": None},
        flag="--max-model-len",
        minimum=1,
    ),
    Setting(
        name="max_num_batched_tokens",
        type="int",
        summary="tokens in one batch",
        env={"MAX_NUM_BATCHED_TOKENS": None},
        flag="--max-num-batched-tokens",
        minimum=1,
    ),
    Setting(
        name="scheduler_delay_factor",
        type="float",
        summary="wait before a prefill is scheduled, as a multiple of the last one's time",
        env={"SCHEDULER_DELAY_FACTOR": None},
        flag="--scheduler-delay-factor",
        minimum=0,
    ),
    Setting(
        name="cudagraph_capture_sizes",
        type="json",
        summary="batch sizes for which graphs are captured, a JSON list; decode has a default",
        flag="--cudagraph-capture-sizes",
    ),
    Setting(
        name="server_timeout_s",
        type="float",
        summary="seconds from its start in which a server must be ready (2500)",
        env={"WAIT_SERVER_TIMEOUT": None},
        minimum=1,
    ),
    Setting(
        name="router_timeout_s",
        type="float",
        summary="seconds from its start in which the router must be ready (300)",
        env={"WAIT_ROUTER_TIMEOUT": None},
        minimum=1,
    ),
    port_setting("dp_master_port", "port on which the DP ranks of a server meet (29500)"),
    port_setting("dp_base_port", "first rendezvous port of a server's GPU processes; else any free one is taken"),
    *router_policies(),
    port_setting("prometheus_port", "port of the router's metrics (29100)"),
)

MOONCAKE = (
    port_setting(
        "handshake_port",
        "first port on which prefill waits for decode's KV handshakes (6301)",
        "HANDSHAKE_PORT",
        unset="6301",
    ),
    Setting(
        name="ib_device",
        type="str",
        summary="RDMA device that carries KV; left out = the transfer engine chooses",
    ),
    Setting(
        name="mooncake_protocol",
        type="str",
        summary="what carries KV (the engine's default: rdma); tcp needs no RDMA device",
        choices=("rdma", "tcp"),
    ),
    Setting(
        name="mooncake_library_dir",
        type="str",
        summary="directory of the image with the transfer engine's shared libraries",
    ),
)
