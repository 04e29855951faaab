"""The socket at which rank 0's agent waits for the others."""

from __future__ import annotations

import socket

from disagg_run.errors import RunError
from disagg_run.running import sockets

#: Port of rank 0's agent where none is named; outside the usual ephemeral range.
STAR_PORT = 21770


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens at ``host`` and ``port`` (0 = any free one); RunError where that cannot be."""
    family = socket.AF_INET6 if ":" in sockets.numeric(host) else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=1024)
    except OSError as error:
        raise RunError(
            f"rank 0's agent cannot listen at {host} port {port}: {error.strerror or error}",
            remedy="name another place with --star",
        ) from None
