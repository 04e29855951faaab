"""How vLLM's prefill and decode stand-ins hand over KV: MoRI-IO, NIXL and Mooncake.

Known of the engine (sources of 0.32.0, recorded calls of vllm-router 0.1.17): the names inside ``kv_transfer_params``
and who fills them in; that a MoRI-IO peer's address stands in ``X-Request-Id``, else in the parameters; that Mooncake's
prefill returns no parameters and is found by ``/query`` on its bootstrap port; which ports listen; that a decode server
without usable parameters computes the prompt itself.

Our choice: the wire between the servers (decode always fetches; in WRITE mode prefill first sees that decode's ports
answer), and what settings are compared for MoRI-IO and Mooncake, which have no hash of them.
"""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import Mapping
from typing import Any

import aiohttp
from aiohttp import web

from disagg_run.simulation.generations import Generation, RequestError
from disagg_run.simulation.listeners import BindError, bind, port_of
from disagg_run.simulation.log import complain, say
from disagg_run.simulation.peers import KvClient, KvListener, KvStore, PeerError, differences
from disagg_run.simulation.process import Died, Stage
from disagg_run.simulation.server import Compute, ModelServer
from disagg_vllm.simulation_settings import Settings

_TIMEOUT = aiohttp.ClientTimeout(total=5)
_ZMQ_ADDRESS = r"host:(?P<host>.+?),handshake:(?P<handshake>\d+),notify:(?P<notify>\d+)"
_PREFILL_ADDRESS = re.compile(rf"___prefill_addr_{_ZMQ_ADDRESS}___decode_addr_")
_DECODE_ADDRESS = re.compile(rf"___decode_addr_{_ZMQ_ADDRESS}_[0-9a-f]{{32}}")


class Peer:
    """One server's part in the handover: its ports, and the exchange of each request."""

    def __init__(self, settings: Settings, server: ModelServer) -> None:
        self.settings = settings
        self.server = server
        self.engine_id = uuid.uuid4().hex
        self.store = KvStore()
        self.client = KvClient()
        #: Where decode servers fetch Mooncake's KV.
        self.fetch_port = 0

    # --- ports ---

    async def open_ports(self, stage: Stage) -> None:
        """Open the connector's listeners; Died where one is taken."""
        settings = self.settings
        if settings.family == "moriio":
            ports = [*settings.moriio_ports("handshake"), *settings.moriio_ports("notify")]
            for port in ports:
                await self._listen(stage, "0.0.0.0", port)
        elif settings.family == "nixl":
            for rank in range(settings.dp_start, settings.dp_start + settings.dp_local):
                await self._listen(stage, settings.nixl_host, settings.nixl_port + rank)
        elif settings.family == "mooncake":
            self.fetch_port = await self._listen(stage, "0.0.0.0", 0)
            if settings.role != "decode":
                await self._serve_query(stage)

    async def _listen(self, stage: Stage, host: str, port: int) -> int:
        listener = KvListener(self.store, self._shown())
        try:
            return port_of(await stage.serve_tcp(host, port, listener.handle))
        except BindError as error:
            raise Died(f"zmq.error.ZMQError: Address already in use (addr='tcp://{host}:{port}'): {error}") from error

    def _shown(self) -> dict[str, Any]:
        settings = self.settings
        shown = {**settings.shared, "tp_size": settings.tp, "dp_size": settings.dp, "reads": settings.reads}
        if settings.family == "moriio":
            shown["ports"] = [*settings.moriio_ports("handshake"), *settings.moriio_ports("notify")]
        return shown

    async def _serve_query(self, stage: Stage) -> None:
        address = f"tcp://{self.settings.address}:{self.fetch_port}"
        ranks = {str(rank): {"0": address} for rank in self.settings.tp_ranks}

        async def query(request: web.Request) -> web.Response:
            return web.json_response({"0": {"engine_id": self.engine_id, "worker_addr": ranks}})

        app = web.Application()
        app.router.add_get("/query", query)
        try:
            bound = bind("0.0.0.0", self.settings.bootstrap_port)
        except BindError as error:
            raise Died(f"OSError: [Errno 98] Address already in use: {error}") from error
        await stage.serve_socket(app, bound)

    # --- requests ---

    async def __call__(self, generation: Generation, compute: Compute) -> Mapping[str, Any]:
        params = generation.mapping("kv_transfer_params")
        role = self.settings.role
        if params.get("do_remote_decode") and role != "decode":
            await compute()
            return await self._hand_over(generation, params)
        if params.get("do_remote_prefill") and role != "prefill":
            if await self._take_over(generation, params):
                return {}
        elif params and (params.get("do_remote_decode") or params.get("do_remote_prefill")):
            raise RequestError(500, f"EngineCore encountered an issue: a {role} server got {sorted(params)}")
        self.server.count("local_prefills")
        await compute()
        return {}

    async def _hand_over(self, generation: Generation, params: Mapping[str, Any]) -> Mapping[str, Any]:
        settings, family = self.settings, self.settings.family
        hold_s = self.server.options.peer_timeout_s
        own = {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_engine_id": self.engine_id,
            "remote_block_ids": [list(range(max(1, generation.prompt_tokens // 16)))],
            "tp_size": settings.tp,
        }
        if family == "nixl":
            self.store.offer(generation.request_id, generation.digest, hold_s=hold_s)
            place = {"remote_host": settings.nixl_host, "remote_port": settings.nixl_port + settings.dp_start}
            return {"kv_transfer_params": {**own, **place, "remote_request_id": generation.request_id}}
        transfer = params.get("transfer_id")
        if family == "mooncake":
            if transfer:
                self.store.offer(str(transfer), generation.digest, hold_s=hold_s)
            else:
                say("WARNING:  Missing transfer_id in kv_transfer_params from router!")
            return {}
        if family == "none":
            return {}
        if not transfer:
            raise RequestError(500, "EngineCore encountered an issue: KeyError: 'transfer_id'")
        if not settings.reads:
            await self._reach_decode(generation, params)
        self.store.offer(str(transfer), generation.digest, hold_s=hold_s)
        handshake, notify = settings.moriio_ports("handshake")[0], settings.moriio_ports("notify")[0]
        ports = {"remote_port": handshake, "remote_handshake_port": handshake, "remote_notify_port": notify}
        sizes = {"remote_dp_size": settings.dp, "transfer_id": transfer}
        return {"kv_transfer_params": {**own, "remote_host": settings.address, **ports, **sizes}}

    async def _reach_decode(self, generation: Generation, params: Mapping[str, Any]) -> None:
        """WRITE: prefill needs decode's ports; it answers the request all the same where they are dead."""
        found = _DECODE_ADDRESS.search(generation.request_id)
        host, port = (found["host"], found["handshake"]) if found else (params.get("remote_host"), None)
        port = port or params.get("remote_handshake_port")
        try:
            if not host or not port:
                raise PeerError(f"request {generation.request_id!r} does not tell the decode server's address")
            await self._greet(str(host), int(port))
        except PeerError as error:
            complain(f"ERROR:    MoRI-IO write failed: {error}")

    async def _greet(self, host: str, port: int) -> Mapping[str, Any]:
        """Every port of a peer must answer, and its settings must fit."""
        peer = await self.client.hello(host, [port])
        await self.client.hello(host, peer.get("ports", [port]))
        own = self.settings.shared
        found = differences(own, peer, own)
        mine, theirs = self.settings.tp, int(peer["tp_size"])
        if max(mine, theirs) % min(mine, theirs):
            found.append(f"tp_size {mine} here and {theirs} at the peer do not divide")
        if self.settings.family == "moriio":
            if peer["reads"] != self.settings.reads:
                found.append("one reads and the other writes")
            if mine != theirs and self.settings.version < (0, 26):
                found.append(f"tp_size {mine} here and {theirs} at the peer, which only 0.26.0 allows")
        if found:
            raise PeerError("; ".join(found))
        return peer

    async def _take_over(self, generation: Generation, params: Mapping[str, Any]) -> bool:
        """Fetch the KV; False where the parameters name none, and the engine computes the prompt itself."""
        if self.settings.family == "none":
            return False
        try:
            place = await self._locate(generation, params)
            if place is None:
                say(f"WARNING:  Got invalid KVTransferParams: {dict(params)}. This request will not utilize KVTransfer")
                return False
            host, port, key = place
            await self._greet(host, port)
            digest = await self.client.fetch(host, port, key, self.server.options.peer_timeout_s)
            if digest != generation.digest:
                raise PeerError(f"the KV of {key!r} belongs to another prompt")
        except (PeerError, ValueError) as error:
            complain(f"ERROR:    KV transfer failed: {error}")
            raise RequestError(500, f"KV transfer failed: {error}") from error
        self.server.count("kv_transfers")
        await asyncio.sleep(self.server.options.transfer_s)
        return True

    async def _locate(self, generation: Generation, params: Mapping[str, Any]) -> tuple[str, int, str] | None:
        """Host, port and key of the request's KV."""
        if self.settings.family == "nixl":
            if not all(params.get(name) for name in ("remote_engine_id", "remote_host", "remote_port")):
                return None
            return str(params["remote_host"]), int(params["remote_port"]), str(params.get("remote_request_id"))
        transfer = params.get("transfer_id")
        if self.settings.family == "mooncake":
            address, engine = params.get("remote_bootstrap_addr"), params.get("remote_engine_id")
            if not (address and engine and transfer):
                return None
            host, port = await self._query(str(address), str(engine))
            return host, port, str(transfer)
        if not transfer:
            raise PeerError("kv_transfer_params have no transfer_id")
        found = _PREFILL_ADDRESS.search(generation.request_id)
        if found:
            return found["host"], int(found["handshake"]), str(transfer)
        if not (params.get("remote_host") and params.get("remote_handshake_port")):
            raise PeerError(f"request {generation.request_id!r} does not tell the prefill server's address")
        return str(params["remote_host"]), int(params["remote_handshake_port"]), str(transfer)

    async def _query(self, address: str, engine_id: str) -> tuple[str, int]:
        """Where a Mooncake engine's first worker is, by its bootstrap server."""
        try:
            async with aiohttp.ClientSession(timeout=_TIMEOUT) as session, session.get(f"{address}/query") as answer:
                answer.raise_for_status()
                entries = (await answer.json()).values()
        except (aiohttp.ClientError, asyncio.TimeoutError, ValueError) as error:
            raise PeerError(f"no answer from the bootstrap server {address}: {error or 'timed out'}") from error
        for entry in entries:
            if entry["engine_id"] == engine_id:
                host, _, port = entry["worker_addr"]["0"]["0"].removeprefix("tcp://").rpartition(":")
                return host, int(port)
        raise PeerError(f"remote engine_id {engine_id} not found from bootstrap server {address}")
