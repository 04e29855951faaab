"""Every port that an ATOM server and atomesh open, and what proves them ready (facts of ATOM ffdf3bb5)."""

from __future__ import annotations

from collections.abc import Iterator

from disagg_atom import models
from disagg_run.context import ProcessContext
from disagg_run.records import Listener, Probe
from disagg_run.roles import dp_ranks
from disagg_run.settable_ports import router_http, settable

HTTP_PORTS = {"prefill": 8010, "decode": 8020}
ROUTER_PORT = 30000
#: Not the router's own default, 29000: that is every router's, and one that is taken makes it panic.
PROMETHEUS_PORT = 29100
#: The engine's default port of the group that joins DP ranks.
DP_MASTER_PORT = 29500
#: Ours: by default the engine takes any free port for its rendezvous, and two servers on a node can take the same.
DP_BASE_PORT = 29600

SERVER_TIMEOUT_S = 2500.0
ROUTER_TIMEOUT_S = 300.0


def server_listeners(ctx: ProcessContext) -> Iterator[Listener]:
    """HTTP, and what DP ranks meet on. HTTP opens when the model is loaded; ``--port`` (8006) is never bound."""
    role = ctx.process.role or "prefill"
    timeout, served = ctx.setting("server_timeout_s", SERVER_TIMEOUT_S), models.served_name(ctx)
    probe = Probe(kind="http", path="/health", timeout_s=timeout, served_model=served)
    yield settable(ctx, "http", f"{role}_port", HTTP_PORTS[role], probe=probe, flag="--server-port")
    if dp_ranks(ctx.role_spec) > 1:
        yield settable(ctx, "dp_master", "dp_master_port", DP_MASTER_PORT, variable="ATOM_DP_MASTER_PORT")
    if ctx.shares_node or ctx.setting("dp_base_port") is not None:
        # One for each DP rank, in case every rank has a rendezvous of its own.
        count = dp_ranks(ctx.role_spec)
        yield settable(ctx, "dp_base", "dp_base_port", DP_BASE_PORT, count=count, variable="ATOM_DP_BASE_PORT")


def router_listeners(ctx: ProcessContext) -> Iterator[Listener]:
    """HTTP and Prometheus.

    atomesh binds HTTP when all workers are registered. Its ``/health`` says nothing and, with health checks disabled,
    its ``/readiness`` neither; ``/v1/models`` is 503 without a worker, and a generation proves the rest.
    """
    timeout, served = ctx.setting("router_timeout_s", ROUTER_TIMEOUT_S), models.served_name(ctx)
    yield router_http(
        ctx,
        ROUTER_PORT,
        probe=Probe(kind="http", path="/v1/models", timeout_s=timeout, served_model=served),
        further_probes=(Probe(kind="generation", path="/v1/completions", timeout_s=timeout, served_model=served),),
        flag="--port",
    )
    yield settable(ctx, "prometheus", "prometheus_port", PROMETHEUS_PORT, flag="--prometheus-port")
