"""Every port that an SGLang server and sglang-router open, and what proves them ready (SGLang 0.5.9 to 0.5.23)."""

from __future__ import annotations

from collections.abc import Iterator

from disagg_run.context import ProcessContext
from disagg_run.records import Listener, Probe
from disagg_run.releases import at_least
from disagg_run.settable_ports import router_http, settable
from disagg_sglang import models

HTTP_PORT = 8000
#: The engine's default; a prefill worker that has it need not be told, nor need those who ask there.
BOOTSTRAP_PORT = 8998
DIST_INIT_PORT = 20000
ROUTER_PORT = 30000
#: The router's own default; one that is taken makes it panic, so it moves with the others.
PROMETHEUS_PORT = 29000

#: From the HTTP port to the first of the ports that DP attention needs on one node.
_DP_OFFSET = 233
#: From the HTTP port, or from the meeting port of several nodes, to the one on which port numbers are handed out.
_BROADCAST_OFFSET = 13

CANARY_TIMEOUT_S = 600.0


def timeout_s(ctx: ProcessContext) -> float:
    """Seconds in which servers and router must be ready."""
    return float(ctx.setting("server_timeout_s", models.body(ctx).server_timeout_s))


def server_listeners(ctx: ProcessContext) -> Iterator[Listener]:
    """The ports of one process of a worker.

    A follower answers ``/health`` on the head's HTTP port number, once its ranks are ready; only the head is waited
    for. The bootstrap server is the prefill head's; all else than these is the head's, too, and random where it is not
    named here (KV managers, DP workers, torch's store on one node).
    """
    process = ctx.process
    probe = Probe(kind="http", path="/health", timeout_s=timeout_s(ctx), served_model=models.served_name(ctx))
    yield settable(
        ctx,
        "http",
        "server_port",
        HTTP_PORT,
        worker_wide=True,
        probe=probe if process.head else None,
        flag="--port",
    )
    if not process.head:
        return
    if process.role == "prefill":
        yield settable(ctx, "bootstrap", "bootstrap_port", BOOTSTRAP_PORT, flag="--disaggregation-bootstrap-port")
    # Tokenizer, detokenizer, RPC, metrics and scheduler input behind the first port; from 0.5.14 the load collector.
    count = 7 if at_least(ctx.engine_version, "0.5.14") else 6
    if process.node_count > 1:
        width = count if ctx.role_spec.dp_attention else 1
        yield settable(ctx, "dist_init", "dist_init_port", DIST_INIT_PORT, count=width)
        if ctx.role_spec.dp_attention:
            yield Listener(name="dp_broadcast", relative_to="dist_init", offset=_BROADCAST_OFFSET)
    elif ctx.role_spec.dp_attention:
        yield Listener(name="dp", relative_to="http", offset=_DP_OFFSET, count=count)
        yield Listener(name="dp_broadcast", relative_to="http", offset=_BROADCAST_OFFSET)


def router_listeners(ctx: ProcessContext) -> Iterator[Listener]:
    """HTTP and Prometheus. ``/health`` is 200 without any worker, so ``/readiness`` is asked, then for a generation."""
    served = models.served_name(ctx)
    canary = timeout_s(ctx) + float(ctx.setting("canary_timeout_s", CANARY_TIMEOUT_S))
    yield router_http(
        ctx,
        ROUTER_PORT,
        probe=Probe(kind="http", path="/readiness", timeout_s=timeout_s(ctx)),
        further_probes=(Probe(kind="generation", path="/v1/completions", timeout_s=canary, served_model=served),),
        flag="--port",
    )
    yield settable(ctx, "prometheus", "prometheus_port", PROMETHEUS_PORT, flag="--prometheus-port")


def bootstrap_port(ctx: ProcessContext) -> int:
    """The bootstrap port that a server is told: of its own worker, and for decode of the first prefill worker.

    Prefill followers register at their head's address with the number that they were given themselves
    (sgl-project/sglang#24378), and decode falls back on its own where a request names none.
    """
    head = ctx.head if ctx.process.role == "prefill" else ctx.heads_of("prefill")[0]
    assert head is not None  # a server has a head
    return head.ports["bootstrap"]


def says_bootstrap_port(ctx: ProcessContext) -> bool:
    """Whether a server is told its bootstrap port: where it is not the engine's own, or workers span nodes."""
    spec = ctx.spec.prefill
    several_nodes = (spec.tp or 1) * spec.pp * spec.dp > ctx.spec.gpus_per_node
    return several_nodes or bootstrap_port(ctx) != BOOTSTRAP_PORT
