"""The ports of a stand-in: bound where the engine would bind them, or the process dies as the engine does.

Several ranks of a simulated launch share one machine, each with a loopback address of its own in
``DISAGG_RUN_NODE_ADDRESS``. Where an engine binds all addresses or the machine's loopback, a stand-in binds that one.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable

NODE_ADDRESS = "DISAGG_RUN_NODE_ADDRESS"

_WHOLE_NODE = ("", "0.0.0.0", "::", "127.0.0.1", "localhost", "::1")

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class BindError(Exception):
    """A port cannot be bound; the text is the one that asyncio, and so uvicorn, gives."""


def node_address() -> str | None:
    """This rank's own address, where the launcher gave one."""
    return os.environ.get(NODE_ADDRESS) or None


def effective_host(host: str) -> str:
    """The address to bind where an engine was told ``host``."""
    own = node_address()
    return own if own is not None and host in _WHOLE_NODE else host


def bind(host: str, port: int, *, listen: bool = True) -> socket.socket:
    """A TCP socket bound to a port; port 0 takes any.

    ``listen``: whether it listens at once; an engine that binds early and listens late says no, and is refused then.
    Raises BindError where the port is taken or the address is not this machine's.
    """
    host = effective_host(host) or "0.0.0.0"
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise BindError(f"[Errno {error.errno}] error while resolving the address ({host!r}, {port})") from error
    opened = socket.socket(family, kind, proto)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    opened.setblocking(False)
    try:
        opened.bind(address)
        if listen:
            # With SO_REUSEADDR two sockets may share a port until one listens: only this shows the clash.
            opened.listen(socket.SOMAXCONN)
    except OSError as error:
        opened.close()
        reason = (os.strerror(error.errno) if error.errno else str(error)).lower()
        message = f"[Errno {error.errno}] error while attempting to bind on address ({host!r}, {port}): {reason}"
        raise BindError(message) from error
    return opened


async def drop(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Take a connection and close it."""
    writer.close()


async def serve_tcp(host: str, port: int, handler: Handler = drop) -> asyncio.Server:
    """Listen on a port; without a ``handler`` each connection is taken and closed."""
    return await asyncio.start_server(handler, sock=bind(host, port))


def port_of(server: asyncio.Server) -> int:
    """The port that a server listens on."""
    return int(server.sockets[0].getsockname()[1])
