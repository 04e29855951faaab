"""The command of vllm-router; how it finds its workers is the connector's to say (``--kv-connector`` and on)."""

from __future__ import annotations

from collections.abc import Iterator

from disagg_run.addresses import is_loopback
from disagg_run.context import ProcessContext, RankContext, any_address, host_port
from disagg_run.option_flags import never_flag
from disagg_run.records import FIXED, Command, Flag, flag
from disagg_run.settable_ports import port_source, router_port_source
from disagg_run.spec.model import ROLES
from disagg_vllm import held, parallel
from disagg_vllm.listeners import PROMETHEUS_PORT
from disagg_vllm.versions import ROUTER_IMAGE

PROGRAM = ("vllm-router",)

#: Beside workers that it is told, it would wait for others (``/health`` stays 503; 0.1.17).
NO_DISCOVERY = never_flag("--vllm-discovery-address", "the router is told its workers")

#: In every public recipe.
POLICY = "consistent_hash"


def router_command(ctx: ProcessContext) -> Command:
    """The router, in an image of its own where containers are used."""
    image = ctx.spec.router.image or ROUTER_IMAGE
    return Command(program=PROGRAM, flags=(*_place(ctx), *_policies(ctx), *held.router_flags(ctx)), image=image)


def _place(ctx: ProcessContext) -> Iterator[Flag]:
    yield flag("--vllm-pd-disaggregation", option=FIXED)
    yield flag("--port", ctx.ports["http"], source=router_port_source(ctx))
    # Its own default is 127.0.0.1.
    yield host_flag(ctx)
    yield flag("--log-level", "info")
    if ctx.set_by("prometheus_port") or ctx.ports["prometheus"] != PROMETHEUS_PORT:
        source = port_source(ctx, "prometheus", "prometheus_port", PROMETHEUS_PORT)
        yield flag("--prometheus-port", ctx.ports["prometheus"], source=source)


def _policies(ctx: ProcessContext) -> Iterator[Flag]:
    router, spec = ctx.spec.router, ctx.spec
    general = spec.source("router.policy") if router.policy else None
    policy = router.policy or POLICY
    yield flag("--policy", policy, source=general)
    for role, own in (("prefill", router.prefill_policy), ("decode", router.decode_policy)):
        setting = f"{role}_router_policy"
        asked, source = (
            (own, spec.source(f"router.{role}_policy")) if own else (ctx.setting(setting), ctx.source(setting))
        )
        # The general policy holds for a role where none is named for it.
        yield flag(f"--{role}-policy", asked or policy, source=source if asked else general)


def told_workers(ctx: ProcessContext) -> Iterator[Flag]:
    """The workers, for connectors whose servers do not register.

    The router starts when all are ready, so it need not wait half a minute between two looks.
    """
    yield flag("--kv-connector", "nixl", option=FIXED)
    for role in ROLES:
        for head in ctx.heads_of(role):
            yield flag(f"--{role}", head.url, option=FIXED)
            if ctx.setting(parallel.HYBRID, role=role):
                for address in head.followers:
                    yield flag(f"--{role}", f"http://{host_port(address, head.ports['http'])}", option=FIXED)
    yield NO_DISCOVERY
    yield flag("--worker-startup-check-interval", 1)


def bound_address(ctx: RankContext) -> str:
    """Where a program serves HTTP: at all addresses of the node's family, for it must be reached from other nodes.

    Nodes that were named by loopback addresses are on one machine, and each serves at its own: two servers of 0.32.0
    would both get the port of all addresses (SO_REUSEPORT), and answer in each other's place.
    """
    address = ctx.node.address
    if ctx.spec.nodes and is_loopback(address):
        return address
    return any_address(address)


def host_flag(ctx: RankContext, *, implied: bool = False) -> Flag:
    """``--host`` of a server or the router, held to where the program is reached as planned."""
    address = bound_address(ctx)
    # A socket of :: takes IPv4 too, in both programs.
    every = () if address == ctx.node.address else ("0.0.0.0", "::") if address == "0.0.0.0" else ("::",)
    reached = (*every, ctx.node.address)
    return Flag("--host", (address,), implied=implied, option=FIXED, agreeing=reached, per_node=("",))
