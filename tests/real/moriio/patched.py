"""The modules that the MoRI-IO patches change, by release, and what tests watch them with."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

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


#: Looks at the clock without a sleep between them that no code needs, however many layers it has.
MOST_LOOKS = 1000


class Clock:
    """The clock of a patched module, in seconds, which goes on when that module sleeps or a test turns it.

    A bound and a spin show in it whatever else this machine does: code that looks at it again and again and never
    sleeps fails. The processor's clock (``perf_counter``) is the true one.
    """

    def __init__(self, module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        #: What each sleep asked for.
        self.slept: list[float] = []
        self._looks = 0
        self._later: list[tuple[float, Callable[[], Any]]] = []
        own = SimpleNamespace(
            monotonic=self._monotonic, sleep=self._sleep, time=time.time, perf_counter=time.perf_counter
        )
        monkeypatch.setattr(module, "time", own)

    def turn(self, seconds: float) -> None:
        """Time passes, and what was to happen in it does."""
        self.now += seconds
        self._looks = 0
        due = [call for when, call in self._later if when <= self.now]
        self._later = [(when, call) for when, call in self._later if when > self.now]
        for call in due:
            call()

    def after(self, seconds: float, call: Callable[[], Any]) -> None:
        """Have something happen in so many seconds from now."""
        self._later.append((self.now + seconds, call))

    def seconds_of(self, call: Callable[[], Any]) -> float:
        """How long a call takes on this clock."""
        before = self.now
        call()
        return self.now - before

    def _monotonic(self) -> float:
        self._looks += 1
        assert self._looks <= MOST_LOOKS, "the patched code looks at the clock again and again and does not sleep"
        return self.now

    def _sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.turn(seconds)


class Timed:
    """Seconds of a call."""

    def __init__(self, call: Callable[[], Any]) -> None:
        started = time.monotonic()
        call()
        self.seconds = time.monotonic() - started


def until(condition: Callable[[], Any], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.005)
