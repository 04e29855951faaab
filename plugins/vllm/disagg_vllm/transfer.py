"""``--kv-transfer-config``: what its JSON has with every connector, and is held to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from disagg_run.context import ProcessContext
from disagg_run.option_flags import never_flag
from disagg_run.records import FIXED, Flag
from disagg_run.releases import at_least
from disagg_run.sources import Layer, Source

CONFIG = "--kv-transfer-config"
#: Its key for what is a connector's own.
EXTRA = "kv_connector_extra_config"

#: Keys that 0.28.0 has and 0.32.0 refuses; no connector here ever read them.
_GONE_KEYS = ("kv_ip", "kv_rank", "kv_parallel_size", "kv_buffer_size")
_GONE_SINCE = "0.32"

_ROUTED_EXPERTS = never_flag("--enable-return-routed-experts", "the engine refuses it beside a KV connector")


def config_flag(
    ctx: ProcessContext,
    plugin: str,
    connector: str,
    leaves: Mapping[str, Any],
    *,
    sources: Mapping[str, Source],
    held: Mapping[str, str],
    unread: Iterable[str] = (),
) -> Flag:
    """The flag for vLLM's ``connector``, by the connector ``plugin``, with further ``leaves`` of its JSON.

    ``sources``: of leaves that the plugin did not choose itself; ``held``: leaves that follow from the plan, with the
    option that changes each; ``unread``: leaves that the release does not read, and would lose without a word. All by
    dotted key.
    """
    role = "kv_producer" if ctx.process.role == "prefill" else "kv_consumer"
    gone = _GONE_KEYS if at_least(ctx.engine_version, _GONE_SINCE) else ()
    why = Source(layer=Layer.CONNECTOR, plugin=plugin, why=f"vLLM {ctx.engine_version} does not read it")
    never = (*gone, *unread)
    return Flag(
        CONFIG,
        json={"kv_connector": connector, "kv_role": role, **leaves},
        leaf_sources={**sources, **dict.fromkeys(never, why)},
        leaf_options={"kv_connector": "connector", "kv_role": FIXED, **held, **dict.fromkeys(never, FIXED)},
    )


def refused_flags(ctx: ProcessContext, *, until: str = "") -> Iterator[Flag]:
    """Flags that the engine refuses beside its connector.

    ``until``: the first release that takes them beside it; "" = none does. Sources of 0.22.1 to 0.32.0: beside every
    connector, in 0.32.0 beside those that move KV from server to server.
    """
    if at_least(ctx.engine_version, "0.22") and not (until and at_least(ctx.engine_version, until)):
        yield _ROUTED_EXPERTS
