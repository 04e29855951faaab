"""How an agent is known in run.json and to rank 0: its pid with its start time, on its host."""

from __future__ import annotations

import os
import socket
from typing import Any

from disagg_run.running import proctree


def agent_mark() -> dict[str, Any]:
    """This process's pid, start time (clock ticks from boot) and host name."""
    own = proctree.read(os.getpid())
    return {"pid": os.getpid(), "start": own.start if own else 0, "host": socket.gethostname()}
