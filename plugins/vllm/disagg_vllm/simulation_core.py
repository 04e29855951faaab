"""The engine core of vLLM's stand-in: a process of its own, whose loss breaks the server.

Known of the engine (0.32.0, run on a processor): killed, its server answers ``/health`` with 503 within 0.1 s and
generations with 500, and exits with 0 five seconds later; a core whose server is killed lives on as an orphan.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from typing import Any

from disagg_run.simulation.generations import Generation, RequestError
from disagg_run.simulation.log import complain, say
from disagg_run.simulation.process import Died
from disagg_run.simulation.server import Compute, Exchange

#: From the loss of the core to the exit of the server, in seconds.
_LINGER_S = 5.0
#: It ends when its server ends it, and not by what is sent to their whole group. The orphan stays for 20 s, so that who
#: forgets it is found out, but nothing stays for good. The kernel keeps 15 letters of a process's name.
_PROGRAM = """
import signal, sys
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, signal.SIG_IGN)
with open("/proc/self/comm", "w") as name:
    name.write("VLLM::EngineCore")
sys.stdin.read()
signal.signal(signal.SIGTERM, signal.SIG_DFL)
signal.alarm(20)
signal.pause()
"""


class EngineCore:
    """The core process of one server."""

    def __init__(self) -> None:
        #: Whether it was lost.
        self.dead = False

    async def live(self) -> None:
        """Start it and watch it until cancelled, which ends it; raises Died some time after it was lost."""
        words = (sys.executable, "-S", "-E", "-c", _PROGRAM)
        core = await asyncio.create_subprocess_exec(*words, stdin=asyncio.subprocess.PIPE)
        try:
            await core.wait()
        finally:
            if core.returncode is None:
                core.kill()
        self.dead = True
        complain(f"ERROR:    Engine core process {core.pid} is gone, the server shuts down")
        await asyncio.sleep(_LINGER_S)
        say("INFO:     Shutting down")
        raise Died("EngineDeadError: the engine core died", exit_code=0)

    def guard(self, exchange: Exchange) -> Exchange:
        """``exchange``, refused where the core is gone."""

        async def guarded(generation: Generation, compute: Compute) -> Mapping[str, Any]:
            if self.dead:
                raise RequestError(500, "EngineCore encountered an issue: it is dead")
            return await exchange(generation, compute)

        return guarded
