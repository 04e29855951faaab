"""The modules that the MoRI-IO patches change, by release, and what tests watch them with."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from tests.real.vllm_sources import VLLM_RELEASES

PATCHED = VLLM_RELEASES[: VLLM_RELEASES.index("0.23.0")]
MORIIO = "vllm.distributed.kv_transfer.kv_connector.v1.moriio.moriio_"
NAMES = (
    MORIIO + "common",
    MORIIO + "engine",
    MORIIO + "connector",
    "vllm.v1.request",
    "vllm.v1.core.sched.scheduler",
    "vllm.v1.engine.core",
)


class Timed:
    """Seconds and processor seconds of a call."""

    def __init__(self, call: Callable[[], Any]) -> None:
        clock, cpu = time.monotonic(), time.process_time()
        self.result = call()
        self.seconds, self.cpu_seconds = time.monotonic() - clock, time.process_time() - cpu


def until(condition: Callable[[], Any], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.005)
