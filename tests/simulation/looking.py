"""What tests see of a stand-in from outside: its exit code, its open ports, its counters."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any


def exit_code(main: Callable[[list[str]], int], words: list[str]) -> int:
    """The exit code of a stand-in that ends before it starts anything."""
    try:
        return main(words)
    except SystemExit as ended:
        return int(ended.code or 0)


def listens(address: str, port: int) -> bool:
    """Whether somebody listens on a port."""
    with socket.socket() as client:
        client.settimeout(2)
        return client.connect_ex((address, port)) == 0


def count(server: Any, port: int, name: str) -> int:
    """One of the stand-in's own counters: ``kv_transfers``."""
    counts = dict(line.split() for line in server.get(port, "/metrics").text.splitlines())
    return int(counts.get(f"standin_{name}_total", 0))
