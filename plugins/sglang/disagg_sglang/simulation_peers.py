"""How SGLang's prefill and decode stand-ins hand over KV.

Known of the engine (its sources, 0.5.9 to 0.5.23, and recorded calls of sglang-router 0.3.2): both servers get the same
body at once with ``bootstrap_host``, ``bootstrap_port`` and ``bootstrap_room``; the room joins the two halves; prefill
nodes register at their worker's bootstrap server, followers at the host of ``--dist-init-addr`` with *their own*
bootstrap port, and one that is refused is left out in silence; decode asks the bootstrap server of the request, with
its own bootstrap port where the request has none; prefill answers when its KV was taken.

Our choice: what the two routes of the bootstrap server answer, and the wire between the KV managers, whose ports are
random as in the engine. All releases compare what ``parity`` has, where early ones of the engine would take garbage.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import aiohttp
from aiohttp import web

from disagg_run import value_meanings
from disagg_run.simulation.generations import Generation, RequestError
from disagg_run.simulation.listeners import effective_host, node_address, port_of
from disagg_run.simulation.log import complain
from disagg_run.simulation.options import Options
from disagg_run.simulation.peers import KvClient, KvListener, KvStore, PeerError, differences
from disagg_run.simulation.process import Stage
from disagg_run.simulation.server import Compute, ModelServer
from disagg_sglang import speculation

if TYPE_CHECKING:
    from disagg_sglang.simulation import Settings

#: What is compared as it is given, by the parser's names of it; some releases have not all.
_AS_GIVEN = (
    "qsa_indexer_dtype",
    "mamba_ssm_dtype",
    "dsv4_attn_backend",
    "speculative_num_draft_tokens",
    "speculative_num_steps",
    "speculative_eagle_topk",
    "speculative_draft_model_path",
    "speculative_draft_kv_cache_dtype",
)

Table = dict[int, dict[str, Any]]
_TIMEOUT = aiohttp.ClientTimeout(total=5)


def shared(args: argparse.Namespace) -> dict[str, Any]:
    """What prefill and decode must agree on: what a release does not compare itself, its KV shows (``parity``)."""
    return {
        "page_size": args.page_size or 1,
        "kv_cache_dtype": args.kv_cache_dtype or "auto",
        "dtype": value_meanings.number_format(args.dtype),
        "dcp_size": value_meanings.size(getattr(args, "dcp_size", None)),
        "enable_deepseek_v4_fp4_indexer": bool(getattr(args, "enable_deepseek_v4_fp4_indexer", False)),
        "speculative_algorithm": speculation.algorithm(args.speculative_algorithm),
        **{name: getattr(args, name, None) for name in _AS_GIVEN},
    }


async def serve_bootstrap(stage: Stage, host: str, port: int, nnodes: int) -> Table:
    """Start the bootstrap server of a prefill head; returns the table in which its nodes register, by node rank."""
    table: Table = {}

    async def put(request: web.Request) -> web.Response:
        entry = await request.json()
        table[int(entry["node_rank"])] = entry
        return web.Response(text="OK")

    async def get(request: web.Request) -> web.Response:
        missing = sorted(set(range(nnodes)) - set(table))
        return web.json_response({"nodes": [table[rank] for rank in sorted(table)], "missing": missing})

    async def health(request: web.Request) -> web.Response:
        return web.Response(text="OK")

    app = web.Application()
    app.router.add_put("/route", put)
    app.router.add_get("/route", get)
    app.router.add_get("/health", health)
    await stage.serve_http(app, host, port)
    return table


async def _serve_kv(stage: Stage, settings: Settings) -> tuple[KvStore, dict[str, Any]]:
    """Open this node's KV manager; returns its store and its entry for the bootstrap server."""
    store = KvStore()
    shown = {**shared(settings.args), "tp_size": settings.tp, "pp_size": settings.pp, "dp_size": settings.dp}
    server = await stage.serve_tcp(_own_host(settings), 0, KvListener(store, shown, keep_fetches=True).handle)
    entry = {"node_rank": settings.node_rank, "rank_ip": _own_host(settings), "rank_port": port_of(server)}
    return store, entry


def _own_host(settings: Settings) -> str:
    host = node_address() or effective_host(settings.host)
    return "127.0.0.1" if host in ("0.0.0.0", "::", "") else host


class PrefillPeer:
    """Prefill: holds the KV of a room until decode has taken it, and answers then."""

    def __init__(self, store: KvStore, options: Options) -> None:
        self._store = store
        self._options = options

    @classmethod
    async def start(cls, stage: Stage, settings: Settings, table: Table) -> PrefillPeer:
        """The head's part: its own KV manager, registered in its own table."""
        store, entry = await _serve_kv(stage, settings)
        table[0] = entry
        return cls(store, stage.options)

    @staticmethod
    async def start_follower(stage: Stage, settings: Settings) -> None:
        """A follower's part: its KV manager, registered at the head's address and this node's bootstrap port."""
        _, entry = await _serve_kv(stage, settings)
        assert settings.dist_init is not None  # a follower has one
        url = f"http://{_bracketed(settings.dist_init[0])}:{settings.bootstrap_port}/route"
        try:
            async with aiohttp.ClientSession(timeout=_TIMEOUT) as session, session.put(url, json=entry) as answer:
                answer.raise_for_status()
        except (aiohttp.ClientError, asyncio.TimeoutError) as error:
            complain(f"ERROR:    cannot register at the bootstrap server {url}: {error}")

    async def __call__(self, generation: Generation, compute: Compute) -> Mapping[str, Any]:
        room = _room(generation)
        await compute()
        limit = self._options.peer_timeout_s
        self._store.offer(room, generation.digest, hold_s=limit)
        try:
            await self._store.fetched(room, limit)
        except PeerError as error:
            raise RequestError(500, f"prefill transfer failed: {error}") from error
        return {}


class DecodePeer:
    """Decode: finds the prefill worker by its bootstrap server, checks that it fits, and takes the room's KV."""

    def __init__(self, settings: Settings, server: ModelServer) -> None:
        self._settings = settings
        self._server = server
        self._client = KvClient()
        #: What bootstrap servers said, by their URL.
        self._known: dict[str, Mapping[str, Any]] = {}

    async def __call__(self, generation: Generation, compute: Compute) -> Mapping[str, Any]:
        room = _room(generation)
        options = self._server.options
        host = str(_first(generation.body.get("bootstrap_host")) or "127.0.0.1")
        port = int(_first(generation.body.get("bootstrap_port")) or self._settings.bootstrap_port)
        url = f"http://{_bracketed(host)}:{port}/route"
        try:
            head = (await self._nodes(url))[0]
            await self._check(head, room)
            digest = await self._client.fetch(head["rank_ip"], head["rank_port"], room, options.peer_timeout_s)
            if digest != generation.digest:
                raise PeerError(f"the KV of room {room} belongs to another prompt")
        except PeerError as error:
            self._known.pop(url, None)
            complain(f"ERROR:    decode transfer failed: {error}")
            raise RequestError(500, f"decode transfer failed: {error}") from error
        self._server.count("kv_transfers")
        await asyncio.sleep(options.transfer_s)
        return {}

    async def _nodes(self, url: str) -> list[Mapping[str, Any]]:
        """The nodes of a prefill worker, its head first; all must have registered and answer."""
        if url not in self._known:
            try:
                async with aiohttp.ClientSession(timeout=_TIMEOUT) as session, session.get(url) as answer:
                    answer.raise_for_status()
                    self._known[url] = await answer.json()
            except (aiohttp.ClientError, asyncio.TimeoutError, ValueError) as error:
                raise PeerError(f"no answer from the bootstrap server {url}: {error or 'timed out'}") from error
        known = self._known[url]
        if known["missing"]:
            raise PeerError(f"nodes {known['missing']} of the prefill worker are not registered at {url}")
        nodes: list[Mapping[str, Any]] = known["nodes"]
        for node in nodes:
            await self._client.hello(node["rank_ip"], [node["rank_port"]])
        return nodes

    async def _check(self, head: Mapping[str, Any], room: str) -> None:
        peer = await self._client.hello(head["rank_ip"], [head["rank_port"]])
        own = shared(self._settings.args)
        found = differences(own, peer, own)
        mine, theirs = self._settings.tp, int(peer["tp_size"])
        if max(mine, theirs) % min(mine, theirs):
            found.append(f"tp_size {mine} here and {theirs} at the prefill server do not divide")
        if self._settings.pp not in (1, peer["pp_size"]):
            found.append(f"pp_size is {self._settings.pp} here and {peer['pp_size']} at the prefill server")
        if found:
            reason = "; ".join(found)
            await self._client.refuse(head["rank_ip"], head["rank_port"], room, f"the decode server says: {reason}")
            raise PeerError(reason)


def _room(generation: Generation) -> str:
    room = generation.body.get("bootstrap_room")
    if room is None:
        raise RequestError(400, "Disaggregated request received without bootstrap room id.")
    return str(room)


def _first(value: Any) -> Any:
    """A router sends lists for a batch; its members share one prefill server."""
    return value[0] if isinstance(value, list) and value else value


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host and not host.startswith("[") else host
