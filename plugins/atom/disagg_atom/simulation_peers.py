"""How ATOM's prefill and decode stand-ins hand over KV.

No traffic of a real pair was recorded: the names inside ``kv_transfer_params`` follow vLLM's, a relative, and the wire
between decode and prefill is ours. That decode must reach every handshake port of prefill is the engine's.
"""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from disagg_run.simulation.generations import Generation, RequestError
from disagg_run.simulation.log import complain, say
from disagg_run.simulation.options import Options
from disagg_run.simulation.peers import KvClient, KvListener, KvStore, PeerError, differences
from disagg_run.simulation.server import Compute, ModelServer

if TYPE_CHECKING:
    from disagg_atom.simulation import Settings

#: What prefill and decode must have in common for mooncake to move blocks one to one, as it is given (``parity``).
COMPARED = (
    "kv_cache_dtype",
    "index_cache_dtype",
    "decode_context_parallel_size",
    "dcp_config",
    "method",
    "num_speculative_tokens",
    "draft_model",
)
_SHARED = ("block_size", "pp_size", *COMPARED)


class Producer:
    """Prefill: computes the prompt, holds its KV, and says in ``kv_transfer_params`` where to fetch it."""

    def __init__(self, settings: Settings, options: Options) -> None:
        self.store = KvStore()
        self.listener = KvListener(self.store, settings.shown())
        self._settings = settings
        self._options = options
        self._engine_id = uuid.uuid4().hex
        self._numbers = itertools.count(1)

    async def __call__(self, generation: Generation, compute: Compute) -> Mapping[str, Any]:
        params = generation.mapping("kv_transfer_params")
        if params.get("do_remote_prefill"):
            raise RequestError(400, "this server is a kv_producer and cannot take over a remote prefill")
        await compute()
        if not params.get("do_remote_decode"):
            return {}
        key = f"{self._engine_id}-{next(self._numbers)}"
        self.store.offer(key, generation.digest, hold_s=self._options.peer_timeout_s)
        blocks = -(-generation.prompt_tokens // self._settings.block_size)
        return {
            "kv_transfer_params": {
                "do_remote_prefill": True,
                "do_remote_decode": False,
                "remote_engine_id": self._engine_id,
                "remote_block_ids": list(range(blocks)),
                "remote_host": self._settings.address,
                "remote_handshake_port": self._settings.handshake_port,
                "transfer_id": key,
                **self._settings.shown(),
            }
        }


class Consumer:
    """Decode: fetches the KV that ``kv_transfer_params`` names, after checking that the peer's settings fit."""

    def __init__(self, settings: Settings, server: ModelServer) -> None:
        self._settings = settings
        self._server = server
        self._client = KvClient()

    async def __call__(self, generation: Generation, compute: Compute) -> Mapping[str, Any]:
        params = generation.mapping("kv_transfer_params")
        if params.get("do_remote_decode"):
            raise RequestError(400, "this server is a kv_consumer and cannot prefill for another")
        if not params.get("do_remote_prefill"):
            say("WARNING:  request without kv_transfer_params: its prompt is computed here")
            self._server.count("local_prefills")
            await compute()
            return {}
        try:
            await self._fetch(params, generation)
        except PeerError as error:
            complain(f"ERROR:    KV transfer failed: {error}")
            raise RequestError(500, f"KV transfer failed: {error}") from error
        except (KeyError, TypeError, ValueError) as error:
            raise RequestError(400, f"kv_transfer_params lack or garble {error}") from error
        self._server.count("kv_transfers")
        return {}

    async def _fetch(self, params: Mapping[str, Any], generation: Generation) -> None:
        self._check(params)
        host, first = str(params["remote_host"]), int(params["remote_handshake_port"])
        ports = range(first, first + int(params["pp_size"]) * int(params["dp_size"]) * int(params["tp_size"]))
        self._check(await self._client.hello(host, ports))
        options = self._server.options
        key = str(params["transfer_id"])
        digest = await self._client.fetch(host, first, key, options.peer_timeout_s)
        if digest != generation.digest:
            raise PeerError(f"the KV of {key!r} belongs to another prompt")
        await asyncio.sleep(options.transfer_s)

    def _check(self, peer: Mapping[str, Any]) -> None:
        found = differences(self._settings.shown(), peer, _SHARED)
        ranks, peer_ranks = self._settings.tp * self._settings.dp, int(peer["tp_size"]) * int(peer["dp_size"])
        if max(ranks, peer_ranks) % min(ranks, peer_ranks):
            found.append(f"{ranks} ranks here and {peer_ranks} at the prefill server do not divide")
        if found:
            raise PeerError("; ".join(found))
