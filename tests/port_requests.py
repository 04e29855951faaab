"""Port requests for tests."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from disagg_run.errors import PortError
from disagg_run.ports import Allocation, PortRequest, allocate
from disagg_run.records import Listener
from disagg_run.sources import Layer, Source

ENGINE = Source(layer=Layer.ENGINE, plugin="toy-disagg")

#: Distances from its HTTP port of what one engine opens with attention data parallelism (SGLang 0.5.9 to 0.5.23).
WIDE_OFFSETS = (13, *range(233, 240))


def request(process: str, *listeners: Listener, rank: int = 0, worker: str | None = None) -> PortRequest:
    if worker is None and process.startswith(("prefill", "decode")):
        worker = process.split(".")[0]
    return PortRequest(process=process, rank=rank, worker=worker, listeners=listeners)


def http(port: int = 8000, **fields: Any) -> Listener:
    return Listener(name="http", default_port=port, **{"source": ENGINE, **fields})


def derived(offset: int, count: int = 1, base: str = "http") -> Listener:
    return Listener(name=f"{base}+{offset}", relative_to=base, offset=offset, count=count)


def refused(*requests: PortRequest, **known: Any) -> str:
    with pytest.raises(PortError) as caught:
        allocate(requests, **known)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def no_overlap(found: Allocation) -> bool:
    used = Counter((row.rank, port) for row in found.table for port in range(row.first, row.last + 1))
    return not used or max(used.values()) == 1
