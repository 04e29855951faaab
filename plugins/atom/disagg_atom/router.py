"""The command of atomesh, ATOM's router."""

from __future__ import annotations

from collections.abc import Iterator

from disagg_atom import held
from disagg_atom.listeners import PROMETHEUS_PORT
from disagg_run.context import ProcessContext
from disagg_run.option_flags import bracketed_host_flag
from disagg_run.records import FIXED, Command, Flag, flag
from disagg_run.settable_ports import port_source, router_port_source

#: Where the engine's image has it.
PROGRAM = ("/usr/local/bin/atomesh", "launch")

POLICY = "random"


def router_command(ctx: ProcessContext) -> Command:
    """The router over the heads of all workers, with its own port given always: its default is not the client's."""
    return Command(program=PROGRAM, flags=(*_place(ctx), *_workers(ctx), *_policies(ctx), *_behaviour(ctx)))


def _place(ctx: ProcessContext) -> Iterator[Flag]:
    # In brackets, as sglang-router, its relative, must have it.
    yield bracketed_host_flag(ctx, implied=False)
    yield flag("--port", ctx.ports["http"], source=router_port_source(ctx))


def _workers(ctx: ProcessContext) -> Iterator[Flag]:
    yield flag("--pd-disaggregation", option=FIXED)
    for head in ctx.heads_of("prefill"):
        yield flag("--prefill", head.url, option="nodes")
    for head in ctx.heads_of("decode"):
        yield flag("--decode", head.url, option="nodes")
    yield from held.ROUTER


def _policies(ctx: ProcessContext) -> Iterator[Flag]:
    router, spec = ctx.spec.router, ctx.spec
    policy = router.policy or POLICY
    yield flag("--policy", policy, source=spec.source("router.policy") if router.policy else None)
    # The general policy holds for a role where none is named for it.
    for role, asked in (("prefill", router.prefill_policy), ("decode", router.decode_policy)):
        setting = f"{role}_router_policy"
        value, source = (
            (asked, spec.source(f"router.{role}_policy")) if asked else (ctx.setting(setting), ctx.source(setting))
        )
        if value not in (None, policy):
            yield flag(f"--{role}-policy", value, source=source)


def _behaviour(ctx: ProcessContext) -> Iterator[Flag]:
    yield flag("--backend", "atom", option="engine")
    yield flag("--log-level", "info")
    # A benchmark's load makes servers too slow for the router's health checks, which would then drop them.
    yield flag("--disable-health-check")
    yield flag("--disable-circuit-breaker")
    source = port_source(ctx, "prometheus", "prometheus_port", PROMETHEUS_PORT)
    yield flag("--prometheus-port", ctx.ports["prometheus"], source=source)
