"""Injected faults: a stand-in that dies, is killed, stops answering, fails requests or floods its log."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time

from disagg_run.simulation.options import Options

_LINE = b"DEBUG: " + b"x" * 120 + b"\n"


class Faults:
    """The faults of one stand-in, armed at its start or once it has loaded, as ``options.clock`` says."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._wedged = False
        self._requests = 0
        self._timers: list[asyncio.TimerHandle] = []

    def arm(self, moment: str) -> None:
        """Start the timers that count from ``moment`` (``start`` or ``ready``)."""
        options = self._options
        if moment == "start" and options.log_flood_mb_s > 0:
            threading.Thread(target=_flood, args=(options.log_flood_mb_s,), daemon=True).start()
        if options.clock != moment:
            return
        loop = asyncio.get_running_loop()
        if options.exit_after_s is not None:
            self._timers.append(loop.call_later(options.exit_after_s, _exit, options.exit_code))
        if options.signal_after_s is not None:
            self._timers.append(loop.call_later(options.signal_after_s, os.kill, os.getpid(), options.signal))
        if options.wedge_after_s is not None:
            self._timers.append(loop.call_later(options.wedge_after_s, self.wedge))

    def disarm(self) -> None:
        """Drop all timers (the process is ending anyway)."""
        for timer in self._timers:
            timer.cancel()

    def wedge(self) -> None:
        """Stop answering from now on."""
        self._wedged = True

    async def pass_gate(self) -> None:
        """Return at once, or never where the stand-in is wedged."""
        if self._wedged:
            await asyncio.get_running_loop().create_future()

    def next_generation_fails(self) -> bool:
        """Count one generation; whether it is one that must fail."""
        self._requests += 1
        return self._options.fail_every > 0 and self._requests % self._options.fail_every == 0


def _exit(code: int) -> None:
    sys.stdout.flush()
    sys.stderr.write(f"RuntimeError: injected fault, the engine exits with code {code}\n")
    sys.stderr.flush()
    os._exit(code)


def _flood(megabytes_s: float) -> None:
    block = _LINE * (65536 // len(_LINE))
    pause = len(block) / (megabytes_s * 1e6)
    due = time.monotonic()
    while True:
        try:
            os.write(1, block)
        except OSError:
            return
        due += pause
        time.sleep(max(0.0, due - time.monotonic()))
