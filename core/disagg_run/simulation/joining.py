"""How the nodes of one worker find each other: followers connect to the head's port, and all go on together.

What goes over the wire is the stand-ins' own: one JSON object a line. Each connection stays open, and its end is the
other node's death.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Any

from disagg_run.simulation.process import Died


class Rendezvous:
    """The head's side.

    ``shape``: what all nodes of the worker must have in common (sizes); ``nodes``: how many there are, head included.
    ``on_loss`` is called with the rank of a follower that goes away after all have joined.
    """

    def __init__(self, nodes: int, shape: Mapping[str, Any], on_loss: Callable[[int], None]) -> None:
        self._missing = set(range(1, nodes))
        self._shape = dict(shape)
        self._on_loss = on_loss
        self._complete = asyncio.Event()
        self._refused: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if nodes == 1:
            self._complete.set()

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one follower; a handler for ``Stage.serve_tcp``."""
        try:
            line = await reader.readline()
            hello = json.loads(line)
            rank, shape = int(hello["node_rank"]), hello["shape"]
        except (ValueError, KeyError, TypeError, ConnectionError):
            writer.close()  # somebody else's connection: a probe
            return
        if problem := self._problem(rank, shape):
            writer.write(json.dumps({"error": problem}).encode() + b"\n")
            writer.close()
            if not self._refused.done():
                self._refused.set_exception(Died(f"RuntimeError: node {rank} cannot join: {problem}"))
            return
        self._missing.discard(rank)
        if not self._missing:
            self._complete.set()
        await self._complete.wait()
        writer.write(b"{}\n")
        try:
            while await reader.read(4096):
                pass
        except ConnectionError:
            pass  # a reset tells the same as an end
        self._on_loss(rank)
        writer.close()

    def _problem(self, rank: int, shape: Mapping[str, Any]) -> str:
        if shape != self._shape:
            return f"it has {shape!r}, the head {self._shape!r}"
        return "" if rank in self._missing else f"node rank {rank} is not expected"

    async def joined(self, timeout_s: float) -> None:
        """Wait until all followers have joined; Died where they do not, or do not fit."""
        waiting = asyncio.ensure_future(self._complete.wait())
        watched: list[asyncio.Future[Any]] = [waiting, self._refused]
        await asyncio.wait(watched, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if self._refused.done():
            self._refused.result()
        if not self._complete.is_set():
            waiting.cancel()
            raise Died(f"RuntimeError: nodes {sorted(self._missing)} did not join within {timeout_s:g} s")


class Joined:
    """A follower's connection to its head."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def until_lost(self) -> None:
        """Wait until the head is gone."""
        try:
            while await self._reader.read(4096):
                pass
        except ConnectionError:
            pass  # a reset tells the same as an end
        self._writer.close()


async def join(host: str, port: int, node_rank: int, shape: Mapping[str, Any], timeout_s: float) -> Joined:
    """A follower's side: connect to the head and wait until all nodes are there.

    Died where the head is not there in ``timeout_s``, refuses this node, or dies while it waits.
    """
    try:
        return await asyncio.wait_for(_join(host, port, {"node_rank": node_rank, "shape": dict(shape)}), timeout_s)
    except asyncio.TimeoutError:
        raise Died(f"RuntimeError: no connection to the head at {host}:{port} within {timeout_s:g} s") from None


async def _join(host: str, port: int, hello: Mapping[str, Any]) -> Joined:
    while True:
        try:
            reader, writer = await asyncio.open_connection(host, port)
            break
        except OSError:
            await asyncio.sleep(0.1)  # the head is started before us, but may not listen yet
    writer.write(json.dumps(hello).encode() + b"\n")
    try:
        answer = json.loads(await reader.readline() or b"null")
    except (OSError, ValueError):
        answer = None
    if answer is None:
        raise Died(f"RuntimeError: the head at {host}:{port} went away while its nodes were joining")
    if "error" in answer:
        raise Died(f"RuntimeError: the head at {host}:{port} refuses this node: {answer['error']}")
    return Joined(reader, writer)
