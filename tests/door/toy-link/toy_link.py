"""The connector plugin ``toy-link``: moves KV from toy prefill to toy decode servers."""

from __future__ import annotations

from collections.abc import Iterable

from disagg_run import Extension, Flag, Listener, ProcessContext, Setting, flag, hookimpl

PORT = Setting(name="handshake_port", type="int", summary="first port on which prefill hands over KV")


@hookimpl
def disagg_plugin() -> Extension:
    return Extension(
        name="toy-link",
        summary="KV transfer between toy servers over TCP",
        kind="connector",
        engines=("toy-disagg",),
        settings=[PORT],
    )


@hookimpl
def disagg_readiness(ctx: ProcessContext) -> Iterable[Listener]:
    if ctx.process.role != "prefill" or not ctx.process.head:
        return ()
    return [Listener(name="handshake", default_port=ctx.setting("handshake_port", 6301))]


@hookimpl
def disagg_args(ctx: ProcessContext) -> Iterable[Flag]:
    if ctx.process.role == "prefill" and ctx.head is not None:
        return [flag("--kv-config", {"role": "producer", "handshake_port": ctx.head.ports["handshake"]})]
    return [flag("--kv-config", {"role": "consumer"})] if ctx.process.role == "decode" else ()
