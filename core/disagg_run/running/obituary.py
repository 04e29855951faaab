"""Tells rank 0 that the agent of another rank is lost before it could join, and why: its guardian speaks for it."""

from __future__ import annotations

import contextlib
import socket

import attrs

from disagg_run.running.messages import encode
from disagg_run.running.outcome import Failure

#: For rank 0 to take the connection, in seconds; who waits for this rank's end waits meanwhile.
_CONNECT_S = 0.5


@attrs.frozen(kw_only=True)
class Star:
    """What it takes to speak to rank 0's agent."""

    #: Its host and port.
    address: tuple[str, int]
    #: Digest of the plan.
    digest: str
    token: str = attrs.field(repr=False)


def tell_first(star: Star, failure: Failure) -> None:
    """Tell rank 0's agent, if it is there, of a failure of another rank; it heeds that unless its run is ending."""
    message = {"type": "lost", "digest": star.digest, "token": star.token, "failure": failure.to_data()}
    with contextlib.suppress(OSError), socket.create_connection(star.address, timeout=_CONNECT_S) as sock:
        sock.sendall(encode(message))
