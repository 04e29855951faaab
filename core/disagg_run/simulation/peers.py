"""How a prefill stand-in hands a request's KV to a decode stand-in.

An engine's stand-in composes these parts and chooses ports, keys and order as its engine does. What goes over the
wire is the stand-ins' own: one JSON object a line. The KV itself is a digest of the prompt, so that a decode server
that gets another request's KV notices.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping
from typing import Any


class PeerError(Exception):
    """The peer cannot be reached, does not have the request's KV, or its settings do not fit."""


class KvStore:
    """What a prefill server holds for decode servers; either side of a request may come first."""

    def __init__(self) -> None:
        self._offers: dict[str, asyncio.Future[str]] = {}
        self._fetches: dict[str, asyncio.Future[None]] = {}

    @staticmethod
    def _slot(table: dict[str, asyncio.Future[Any]], key: str) -> asyncio.Future[Any]:
        if key not in table:
            table[key] = asyncio.get_running_loop().create_future()
        return table[key]

    def offer(self, key: str, digest: str, *, hold_s: float) -> None:
        """Hold the KV of a request, named ``key``, until it is fetched, ``hold_s`` at most."""
        offer = self._slot(self._offers, key)
        if not offer.done():
            offer.set_result(digest)
            offer.get_loop().call_later(hold_s, self._drop, key, offer)

    def _drop(self, key: str, offer: asyncio.Future[str]) -> None:
        if self._offers.get(key) is offer:
            del self._offers[key]

    async def fetch(self, key: str, timeout_s: float) -> str:
        """The digest of the request ``key``, waiting for it up to ``timeout_s``; it is gone then."""
        try:
            digest: str = await asyncio.wait_for(asyncio.shield(self._slot(self._offers, key)), timeout_s)
        except asyncio.TimeoutError:
            self._offers.pop(key, None)
            raise PeerError(f"no KV for request {key!r} within {timeout_s:g} s") from None
        del self._offers[key]
        fetched = self._slot(self._fetches, key)
        if not fetched.done():
            fetched.set_result(None)
        return digest

    async def fetched(self, key: str, timeout_s: float) -> None:
        """Wait until the request's KV was fetched; PeerError where nobody comes in time, and the KV is dropped."""
        try:
            await asyncio.wait_for(asyncio.shield(self._slot(self._fetches, key)), timeout_s)
        except asyncio.TimeoutError:
            raise PeerError(f"nobody fetched the KV of request {key!r} within {timeout_s:g} s") from None
        finally:
            self._fetches.pop(key, None)
            self._offers.pop(key, None)

    def fail(self, key: str, reason: str) -> None:
        """End the waiting in ``fetched(key)`` with an error: the decode server cannot take the KV."""
        self._offers.pop(key, None)
        fetched = self._slot(self._fetches, key)
        if not fetched.done():
            fetched.set_exception(PeerError(reason))
            fetched.exception()  # asked for here, so that nobody has to

    def forget_fetch(self, key: str) -> None:
        """Say that nobody will wait for ``fetched(key)``."""
        self._fetches.pop(key, None)

    @property
    def held(self) -> int:
        """How many requests' KV is held."""
        return sum(offer.done() for offer in self._offers.values())


class KvListener:
    """Answers decode servers on the ports of a prefill server: its settings, and the KV it holds."""

    def __init__(self, store: KvStore, settings: Mapping[str, Any], *, keep_fetches: bool = False) -> None:
        self._store = store
        self._settings = dict(settings)
        self._keep_fetches = keep_fetches

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection; a handler for ``listeners.serve_tcp``."""
        try:
            while line := await reader.readline():
                writer.write(json.dumps(await self._answer(line)).encode() + b"\n")
                await writer.drain()
        except ConnectionError:
            pass  # a decode server that died; its requests time out on their own
        finally:
            writer.close()

    async def _answer(self, line: bytes) -> dict[str, Any]:
        try:
            question = json.loads(line)
            if question["op"] == "hello":
                return {"settings": self._settings}
            if question["op"] == "fail":
                self._store.fail(str(question["key"]), str(question["reason"]))
                return {}
            digest = await self._store.fetch(str(question["key"]), float(question["timeout_s"]))
        except (ValueError, KeyError, TypeError):
            return {"error": "not understood"}
        except PeerError as error:
            return {"error": str(error)}
        if not self._keep_fetches:
            self._store.forget_fetch(str(question["key"]))
        return {"digest": digest}


class KvClient:
    """A decode server's side: greets each of a peer's ports once, then fetches KV request by request."""

    def __init__(self, *, connect_timeout_s: float = 5.0) -> None:
        self._connect_timeout_s = connect_timeout_s
        self._greeted: dict[tuple[str, int], Mapping[str, Any]] = {}

    async def hello(self, host: str, ports: Iterable[int]) -> Mapping[str, Any]:
        """The settings of the peer; every one of its ``ports`` must answer."""
        settings: Mapping[str, Any] = {}
        for port in ports:
            known = self._greeted.get((host, port))
            if known is None:
                known = (await self._ask(host, port, {"op": "hello"}, self._connect_timeout_s))["settings"]
                self._greeted[host, port] = known
            settings = known
        return settings

    async def fetch(self, host: str, port: int, key: str, timeout_s: float) -> str:
        """The digest of the request ``key``, waiting for it up to ``timeout_s``."""
        question = {"op": "fetch", "key": key, "timeout_s": timeout_s}
        try:
            return str((await self._ask(host, port, question, timeout_s + self._connect_timeout_s))["digest"])
        except PeerError:
            self._greeted = {place: known for place, known in self._greeted.items() if place[0] != host}
            raise

    async def refuse(self, host: str, port: int, key: str, reason: str) -> None:
        """Tell the peer, which waits, that the KV of ``key`` will not be fetched."""
        await self._ask(host, port, {"op": "fail", "key": key, "reason": reason}, self._connect_timeout_s)

    async def _ask(self, host: str, port: int, question: Mapping[str, Any], timeout_s: float) -> Mapping[str, Any]:
        place = f"{host}:{port}"
        try:
            reader, writer = await asyncio.wait_for(asyncio.open_connection(host, port), self._connect_timeout_s)
        except (OSError, asyncio.TimeoutError) as error:
            raise PeerError(f"cannot connect to the prefill server at {place}: {error or 'timed out'}") from error
        try:
            writer.write(json.dumps(dict(question)).encode() + b"\n")
            line = await asyncio.wait_for(reader.readline(), timeout_s)
            answer: Mapping[str, Any] = json.loads(line or b'{"error": "connection closed"}')
        except (OSError, ValueError, asyncio.TimeoutError) as error:
            raise PeerError(f"no answer from the prefill server at {place}: {error or 'timed out'}") from error
        finally:
            writer.close()
        if "error" in answer:
            raise PeerError(f"the prefill server at {place} says: {answer['error']}")
        return answer


def differences(own: Mapping[str, Any], peer: Mapping[str, Any], names: Iterable[str]) -> list[str]:
    """One clause for each of ``names`` in which the two servers differ."""
    return [
        f"{name} is {own.get(name)!r} here and {peer.get(name)!r} at the prefill server"
        for name in names
        if own.get(name) != peer.get(name)
    ]
