"""The command of sglang-router."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

import attrs

from disagg_run.catalogue import load_catalogue
from disagg_run.context import ProcessContext
from disagg_run.errors import SpecError
from disagg_run.flags import split_words
from disagg_run.option_flags import bracketed_host_flag, implied_flag
from disagg_run.records import FIXED, Command, Flag, flag
from disagg_run.settable_ports import port_source, router_port_source
from disagg_run.sources import Source
from disagg_sglang import held
from disagg_sglang.listeners import BOOTSTRAP_PORT, PROMETHEUS_PORT
from disagg_sglang.versions import CATALOGUES, ROUTER

PROGRAM = ("python", "-m", "sglang_router.launch_router")

POLICY = "random"

_DP_AWARE = "--dp-aware"

#: A benchmark's load makes servers slow to answer: give up late, and try again.
RETRIES = ("--cb-timeout-duration-secs", "15", "--retry-max-retries", "3")
#: In an agentic run a conversation goes to the worker that has its prefix.
AGENTIC_POLICY = (
    "--cache-threshold",
    "0.3",
    "--balance-abs-threshold",
    "2",
    "--balance-rel-threshold",
    "1.1",
)
#: And no worker is dropped while its long prompts keep it from answering.
AGENTIC_HEALTH = (
    "--disable-circuit-breaker",
    "--health-failure-threshold",
    "100",
    "--health-check-timeout-secs",
    "600",
    "--health-check-interval-secs",
    "30",
)


def router_command(ctx: ProcessContext) -> Command:
    """The router over the heads of all workers, exactly those."""
    flags = (*_place(ctx), *_policies(ctx), *_resilience(ctx), *_workers(ctx))
    _check_dp_aware(ctx, flags)
    return Command(program=PROGRAM, flags=flags)


def _check_dp_aware(ctx: ProcessContext, flags: tuple[Flag, ...]) -> None:
    """Refuse the flag with which no request would come to a worker (seen on 0.3.2, the newest)."""
    by_hand = [text.source for text in ctx.spec.router.args if _DP_AWARE in text.words]
    sources = [*by_hand, *(each.source for each in flags if each.name == _DP_AWARE)]
    if sources and (ctx.spec.router.version or ROUTER) == ROUTER:
        raise SpecError(
            f"{_DP_AWARE} ({sources[0]}) makes sglang-router {ROUTER} send to http://HOST:PORT@RANK where prefill and"
            " decode are apart, which is host 0.0.0.RANK: no request would come to a worker",
            remedy="leave it out; servers spread requests over their own DP ranks",
        )


def _place(ctx: ProcessContext) -> Iterator[Flag]:
    yield flag("--pd-disaggregation", option=FIXED)
    # It waits at every IPv4 address by itself, and takes "::" for none ("invalid socket address syntax"; 0.3.2).
    yield bracketed_host_flag(ctx, implied=True)
    yield flag("--port", ctx.ports["http"], source=router_port_source(ctx))
    if ctx.ports["prometheus"] != PROMETHEUS_PORT:
        source = port_source(ctx, "prometheus", "prometheus_port", PROMETHEUS_PORT)
        yield flag("--prometheus-port", ctx.ports["prometheus"], source=source)


def _workers(ctx: ProcessContext) -> Iterator[Flag]:
    heads = ctx.heads_of("prefill")
    # Where the router says none, decode asks at its own: right only where all are alike.
    told = any(head.ports["bootstrap"] != BOOTSTRAP_PORT for head in heads)
    for head in heads:
        port = head.ports["bootstrap"]
        yield flag("--prefill", head.url, *((port,) if told else ()), option="nodes")
        if not told:
            yield implied_flag("--prefill", head.url, port, option="nodes")
    for head in ctx.heads_of("decode"):
        yield flag("--decode", head.url, option="nodes")
    yield from held.ROUTER


def _policies(ctx: ProcessContext) -> Iterator[Flag]:
    replaced = _words(ctx, "router_policy_flags")
    if replaced is not None:
        yield from replaced
        yield from _asked_policies(ctx)
        return
    agentic = ctx.setting("agentic", False)
    general = _chosen(ctx, "policy", "prefill_router_policy" if agentic else "") or (POLICY, None)
    yield flag("--policy", general[0], source=general[1])
    if agentic:
        yield from split_words(AGENTIC_POLICY, load_catalogue(CATALOGUES[-1]), ctx.source("agentic"))
        yield from _asked_policies(ctx, general=False)
        return
    for role in ("prefill", "decode"):
        value, source = _chosen(ctx, f"{role}_policy", f"{role}_router_policy") or general
        yield flag(f"--{role}-policy", value, source=source)


def _asked_policies(ctx: ProcessContext, *, general: bool = True) -> Iterator[Flag]:
    """The policies that the user named one by one."""
    for field in (*(("policy",) if general else ()), "prefill_policy", "decode_policy"):
        value = getattr(ctx.spec.router, field)
        if value is not None:
            yield flag("--" + field.replace("_", "-"), value, source=ctx.spec.source(f"router.{field}"))


def _chosen(ctx: ProcessContext, field: str, setting: str) -> tuple[str, Source | None] | None:
    """A policy that somebody chose, by the later of the option's and the setting's layer."""
    option, value = getattr(ctx.spec.router, field), ctx.setting(setting) if setting else None
    option_source = ctx.spec.source(f"router.{field}")
    if value is not None and (option is None or ctx.source(setting).layer > option_source.layer):
        return value, ctx.source(setting)
    return None if option is None else (option, option_source)


def _resilience(ctx: ProcessContext) -> Iterator[Flag]:
    agentic = ctx.setting("agentic", False)
    replaced = _words(ctx, "router_resilience_flags" if agentic else "router_cb_args")
    if replaced is not None:
        yield from replaced
        return
    source = ctx.source("agentic") if agentic else None
    words = AGENTIC_HEALTH if agentic else RETRIES
    for each in split_words(words, load_catalogue(CATALOGUES[-1]), ctx.source("agentic")):
        yield attrs.evolve(each, source=source)


def _words(ctx: ProcessContext, setting: str) -> tuple[Flag, ...] | None:
    """The flags of a setting that holds them as text; None where it is not set."""
    text = ctx.setting(setting)
    if text is None:
        return None
    source = ctx.source(setting)
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise SpecError(
            f"{setting} is {text!r} ({source}), which is no list of words: {str(error).lower()}",
            remedy="write it as on a command line, each quote closed",
        ) from None
    return split_words(words, load_catalogue(CATALOGUES[-1]), source)
