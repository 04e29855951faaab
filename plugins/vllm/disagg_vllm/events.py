"""Ports on which servers tell of their KV cache, where the user's ``--kv-events-config`` has them do so."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from disagg_run.context import ProcessContext
from disagg_run.flags import split_words
from disagg_run.records import Listener
from disagg_run.sources import CORE_DEFAULT, Source
from disagg_vllm import asked, parallel

_CONFIG = "--kv-events-config"
_ENDPOINT = "tcp://*:5557"
#: Endpoints at which the engine waits, where it does not connect to another's (``distributed/kv_events.py``); port 0 is
#: any that is free.
_BOUND = re.compile(r"tcp://(?:\*|0\.0\.0\.0|\[?::\]?):([1-9]\d*)\Z")


def listeners(ctx: ProcessContext) -> Iterator[Listener]:
    """A port for each data-parallel rank's engine core: that of the endpoint + rank; sources of 0.14.1 to 0.32.0."""
    size = parallel.sizes(ctx.role_spec)
    if not (ctx.process.head or size.dp > 1) or not asked.mentions(ctx, _CONFIG):
        return
    config, source = _config(ctx)
    if config.get("enable_kv_cache_events") is not True or config.get("publisher", "zmq") != "zmq":
        return
    ranks = parallel.local_ranks(ctx)
    for name, key, default in (("kv_events", "endpoint", _ENDPOINT), ("kv_replay", "replay_endpoint", "")):
        found = _BOUND.match(str(config.get(key) or default))
        if found:
            port = int(found[1]) + ranks.start
            yield Listener(name=name, default_port=port, count=len(ranks), pinned=True, source=source)


def _config(ctx: ProcessContext) -> tuple[Mapping[str, Any], Source]:
    """What the user's words come to, read loosely: what is broken is told of when flags are checked."""
    config: dict[str, Any] = {}
    source = CORE_DEFAULT
    for text in asked.texts(ctx):
        for flag in split_words(text.words, None, text.source):
            name, _, key = flag.name.replace("_", "-").partition(".")
            if name != _CONFIG or not flag.values:
                continue
            source = text.source
            value = _read(flag.values[0])
            if key:
                config[flag.name.partition(".")[2]] = value
            elif isinstance(value, Mapping):
                config |= value
    return config, source


def _read(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
