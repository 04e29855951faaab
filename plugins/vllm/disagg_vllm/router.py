"""The command of vllm-router; how it finds its workers is the connector's to say (``--kv-connector`` and on)."""

from __future__ import annotations

from collections.abc import Iterator

from disagg_run.context import Head, ProcessContext, RankContext
from disagg_run.records import Command, Flag, flag
from disagg_vllm.listeners import PROMETHEUS_PORT
from disagg_vllm.versions import ROUTER_IMAGE

PROGRAM = ("vllm-router",)

#: In every public recipe.
POLICY = "consistent_hash"


def router_command(ctx: ProcessContext) -> Command:
    """The router, in an image of its own where containers are used."""
    image = ctx.spec.router.image or ROUTER_IMAGE
    return Command(program=PROGRAM, flags=(*_place(ctx), *_policies(ctx)), image=image)


def _place(ctx: ProcessContext) -> Iterator[Flag]:
    yield flag("--vllm-pd-disaggregation")
    source = None if ctx.spec.router.port is None else ctx.spec.source("router.port")
    yield flag("--port", ctx.ports["http"], source=source)
    # Its own default is 127.0.0.1.
    yield flag("--host", any_address(ctx))
    yield flag("--log-level", "info")
    chosen = ctx.setting("prometheus_port")
    if chosen is not None or ctx.ports["prometheus"] != PROMETHEUS_PORT:
        by = None if chosen is None else ctx.source("prometheus_port")
        yield flag("--prometheus-port", ctx.ports["prometheus"], source=by)


def _policies(ctx: ProcessContext) -> Iterator[Flag]:
    router, spec = ctx.spec.router, ctx.spec
    general = spec.source("router.policy") if router.policy else None
    policy = router.policy or POLICY
    yield flag("--policy", policy, source=general)
    for role, own in (("prefill", router.prefill_policy), ("decode", router.decode_policy)):
        yield flag(f"--{role}-policy", own or policy, source=spec.source(f"router.{role}_policy") if own else general)


def any_address(ctx: RankContext) -> str:
    """All addresses of the node's family, for a program that must be reached from other nodes."""
    return "::" if ":" in ctx.node.address else "0.0.0.0"


def url(head: Head) -> str:
    """Where a worker serves HTTP."""
    address = f"[{head.address}]" if ":" in head.address else head.address
    return f"http://{address}:{head.ports['http']}"
