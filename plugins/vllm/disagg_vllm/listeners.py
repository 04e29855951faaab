"""Every port that a vLLM server and vllm-router open, and what proves them ready (facts of 0.32.0 and 0.1.17)."""

from __future__ import annotations

from collections.abc import Iterator

from disagg_run.context import ProcessContext
from disagg_run.records import Listener, Probe
from disagg_run.settable_ports import router_http, settable
from disagg_vllm import events, models, parallel

HTTP_PORT = 2584
ROUTER_PORT = 30000
#: The router's own default, on 127.0.0.1; one that is taken makes it panic.
PROMETHEUS_PORT = 29000
#: The engine's defaults: where nodes of one tensor-parallel group meet, and where remote data-parallel ranks do.
MASTER_PORT = 29501
DP_RPC_PORT = 29550
#: Ours: by default the engine takes any free port for what its processes say to each other.
WINDOW_PORT = 20000
#: Ports of such a window. The engine asks for some five a data-parallel rank, and steps over those that are taken.
WINDOW = 100

#: What ``/health`` answers once an engine core is dead, within 0.1 s, and only then: before it is ready nothing listens
#: (``entrypoints/serve/instrumentator/health.py`` of 0.32.0; a killed core of it). The main process exits 5 s later.
BROKEN = 503

#: The public launcher waits 1800 s for servers, but tells the engine to give itself 3600 s to load.
SERVER_TIMEOUT_S = 3600.0
ROUTER_TIMEOUT_S = 1800.0


def server_listeners(ctx: ProcessContext) -> Iterator[Listener]:
    """HTTP where it is served, and what the nodes of a worker and the servers of a node meet on.

    The engine binds HTTP at once and answers when the model is loaded.
    """
    size = parallel.sizes(ctx.role_spec)
    if parallel.serves_http(ctx):
        timeout, served = ctx.setting("server_timeout_s", SERVER_TIMEOUT_S), models.served_name(ctx)
        probe = Probe(kind="http", path="/health", timeout_s=timeout, served_model=served, broken_status=BROKEN)
        hybrid = ctx.process.node_count > 1 and bool(ctx.setting(parallel.HYBRID))
        yield settable(ctx, "http", "server_port", HTTP_PORT, probe=probe, flag="--port", worker_wide=hybrid)
    if ctx.process.head:
        if parallel.spans_replica(ctx):
            yield Listener(name="master", default_port=MASTER_PORT, flag="--master-port")
        if ctx.process.node_count > 1 and size.dp > 1:
            yield Listener(name="dp_rpc", default_port=DP_RPC_PORT, flag="--data-parallel-rpc-port")
    yield from events.listeners(ctx)
    if ctx.shares_node:
        yield Listener(name="window", default_port=WINDOW_PORT, count=WINDOW)


def router_listeners(ctx: ProcessContext) -> Iterator[Listener]:
    """HTTP and Prometheus.

    ``/health`` is 200 when all workers given by flags are healthy, or, with discovery, when one of each role has
    registered; ``/readiness`` and ``/v1/models`` stay 503 for ever with discovery. A generation proves the rest.
    """
    timeout = ctx.setting("router_timeout_s", ROUTER_TIMEOUT_S)
    yield router_http(
        ctx,
        ROUTER_PORT,
        probe=Probe(kind="http", path="/health", timeout_s=timeout),
        further_probes=(Probe(kind="generation", path="/v1/completions", timeout_s=timeout),),
        flag="--port",
    )
    yield settable(ctx, "prometheus", "prometheus_port", PROMETHEUS_PORT, flag="--prometheus-port")
