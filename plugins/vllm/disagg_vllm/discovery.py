"""How MoRI-IO's servers and vllm-router find each other: servers register, again and again, by ZMQ."""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from disagg_run.addresses import numeric_address
from disagg_run.context import ProcessContext, RankContext, any_address, host_port
from disagg_run.option_flags import never_flag
from disagg_run.records import FIXED, Flag, Listener, Probe, flag
from disagg_run.releases import at_least
from disagg_run.settable_ports import settable
from disagg_run.sources import Layer, Source
from disagg_run.spec.model import ROLES
from disagg_vllm import rdma
from disagg_vllm.listeners import ROUTER_TIMEOUT_S
from disagg_vllm.versions import REGISTRATION, ROUTER

#: The connector's name.
NAME = "vllm-moriio"

DISCOVERY_PORT = 36367

#: With these it does not wait for registrations.
NO_WORKERS = tuple(never_flag(f"--{role}", "servers register with the router themselves") for role in ROLES)

#: Name of the check that an expert waives to start serving before the router has named every server.
REGISTRATIONS = "registrations"


def listener(ctx: ProcessContext) -> Listener:
    """Where servers register with the router, by ZMQ; a taken port only makes the router warn.

    The router's health says only that one server of each role has come, and nothing but its log says which.
    """
    timeout = ctx.setting("router_timeout_s", ROUTER_TIMEOUT_S)
    words = {"prefill": "Add Prefill", "decode": "Add Decode"}
    texts = [f"{words[head.role]} [HTTP:{{http:{head.name}}}," for head in ctx.heads] if names_workers(ctx) else []
    proofs = [Probe(kind="output", text=text, timeout_s=timeout) for text in texts]
    return settable(ctx, "discovery", "discovery_port", DISCOVERY_PORT, further_probes=proofs)


def names_workers(ctx: ProcessContext) -> bool:
    """Whether the router will print each server that registers, at an address that the plan knows.

    One registration comes from each head, with VLLM_HOST_IP, which is the node's address where that is no name. The
    words are those of vllm-router 0.1.17 at its log level info. What the user changes of that ends the certainty.
    """
    spec = ctx.spec
    known_router = spec.router.version == ROUTER if spec.router.image else spec.router.version in (None, ROUTER)
    if REGISTRATIONS in spec.waive or not known_router or not at_least(ctx.engine_version, REGISTRATION):
        return False
    further = spec.processes.values()
    texts = (*spec.args, *spec.prefill.args, *spec.decode.args, *spec.router.args)
    words = [word for text in (*texts, *(each for one in further for each in one.args)) for word in text.words]
    if any("--log-level" in word or "host_ip" in word for word in words):
        return False
    if any(
        "VLLM_HOST_IP" in env for env in (spec.env, spec.prefill.env, spec.decode.env, *(one.env for one in further))
    ):
        return False
    if any("RUST_LOG" in env for env in (spec.router.env, *(one.env for one in further))):
        return False  # it counts more than --log-level (0.1.17)
    return all(numeric_address(head.address) is not None and ":" not in head.address for head in ctx.heads)


def router_place(ctx: ProcessContext) -> tuple[str, int, Source, Source]:
    """Address and port on which the router awaits registrations, with who chose each."""
    own = Source(layer=Layer.CONNECTOR, plugin=NAME)
    port = ctx.peers.get("router", {}).get("discovery") or ctx.setting("discovery_port", DISCOVERY_PORT)
    by = rdma.chosen(ctx, "discovery_port", NAME)
    if ctx.spec.router.mode == "external" and ctx.setting("router_address"):
        return str(ctx.setting("router_address")), port, ctx.source("router_address"), by
    where = ctx.spec.source("nodes") if ctx.spec.nodes else own
    return ctx.first_node.address, port, attrs.evolve(where, why="node of the router"), by


def router_flags(ctx: ProcessContext) -> Iterator[Flag]:
    """How the router finds its workers: they come to it."""
    yield flag("--kv-connector", "moriio", option=FIXED)
    yield from NO_WORKERS
    port, source = ctx.ports["discovery"], rdma.chosen(ctx, "discovery_port", NAME)
    told = flag("--vllm-discovery-address", host_port(any_address(ctx.node.address), port), source=source, option=FIXED)
    own = host_port(ctx.node.address, port)
    yield attrs.evolve(told, agreeing=(own,), remark=generation_remark(ctx))


def generation_remark(ctx: RankContext) -> str:
    """What to know of an engine and a router that do not find each other; "" = nothing.

    A user who names the router's version has chosen one of the engine's time.
    """
    if at_least(ctx.engine_version, REGISTRATION) or ctx.spec.router.version:
        return ""
    return (
        f"vLLM {ctx.engine_version} registers with the router in the form of releases before {REGISTRATION}, which"
        f" vllm-router {ROUTER} does not understand: give a router of that time by --router-image and --router-version"
    )
