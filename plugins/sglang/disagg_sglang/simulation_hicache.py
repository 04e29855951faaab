"""How SGLang's stand-in attaches to HiCache's store, before it serves.

Known of the engine (its ``mooncake_store.py``) and the store's client (0.3.13.post1, run against its master): each TP
rank gives the store its part of ``global_segment_size``; a client puts its name into the metadata server, then mounts
its segment at the master; it tries 20 times, and then the server dies. With a metadata server other than HTTP
(``P2PHANDSHAKE``) only the master is asked.

Our choice: the names of the segments, and the wire to the master's stand-in (``simulation_store``).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import aiohttp

from disagg_run.simulation.log import complain
from disagg_run.simulation.process import Died, Stage

if TYPE_CHECKING:
    from disagg_sglang.simulation import Settings

_TRIES = 20
_PAUSE_S = 0.1
_TIMEOUT = aiohttp.ClientTimeout(total=5)


async def attach_to_store(stage: Stage, settings: Settings) -> None:
    """Register this node's ranks at the store that the arguments name, if any; Died where it is not there.

    What the store is told stays until the end of the process.
    """
    config = _store_config(settings)
    if config is None:
        return
    try:
        size = _segment_bytes(config.get("global_segment_size", "4gb")) // settings.tp
    except ValueError as error:
        raise Died(f"ValueError: Invalid global_segment_size: {error}") from error
    first = settings.node_rank * settings.tp // settings.nnodes
    names = [f"{config.get('local_hostname')}:{first + index}" for index in range(settings.tp // settings.nnodes)]
    for trial in range(1, _TRIES + 1):
        try:
            await _register(stage, config, names, size)
            return
        except (OSError, aiohttp.ClientError, asyncio.TimeoutError, ValueError) as error:
            complain(f"W real_client.cpp: Failed to create client, retry {trial}/{_TRIES}: {error or 'timed out'}")
            await asyncio.sleep(_PAUSE_S)
    raise Died("RuntimeError: Failed to setup Mooncake store, error code: -1")


def _store_config(settings: Settings) -> Mapping[str, Any] | None:
    text = settings.args.hicache_storage_backend_extra_config
    if settings.args.hicache_storage_backend != "mooncake" or not text:
        return None
    try:
        config = json.loads(text)
    except ValueError as error:
        raise Died(f"ValueError: Invalid backend extra config JSON: {error}") from error
    return config if isinstance(config, dict) and config.get("master_server_address") else None


def _segment_bytes(size: object) -> int:
    """Bytes of ``64gb`` or of a plain number, as the engine reads them; ValueError for other units."""
    text = str(size).strip().lower()
    return int(text.removesuffix("gb")) * 2**30 if text.endswith("gb") else int(text)


async def _register(stage: Stage, config: Mapping[str, Any], names: list[str], size: int) -> None:
    url = str(config.get("metadata_server", ""))
    if url.startswith("http"):
        async with aiohttp.ClientSession(timeout=_TIMEOUT) as session:
            for name in names:
                for key in (f"mooncake/rpc_meta/{name}", f"mooncake/ram/{name}"):
                    body = json.dumps({"name": name, "protocol": config.get("protocol")})
                    async with session.put(f"{url}?key={quote(key, safe='')}", data=body) as answer:
                        answer.raise_for_status()
    host, _, port = str(config["master_server_address"]).rpartition(":")
    connecting = asyncio.open_connection(host.strip("[]"), int(port))
    reader, writer = await asyncio.wait_for(connecting, _TIMEOUT.total)
    try:
        for name in names:
            writer.write(json.dumps({"mount": name, "bytes": size}).encode() + b"\n")
            line = await asyncio.wait_for(reader.readline(), _TIMEOUT.total)
            problem = json.loads(line or b'{"error": "connection closed"}').get("error")
            if problem:
                raise ConnectionError(f"the master at {config['master_server_address']} says: {problem}")
    except BaseException:
        writer.close()
        raise
    stage.start(_stay(reader, writer))


async def _stay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Hold the connection, with which the segments would go; the engine goes on without its store."""
    try:
        while await reader.read(4096):
            pass
    except ConnectionError:
        pass  # a reset tells the same as an end
    finally:
        writer.close()
    complain("E client_service.cpp: the master of the store is gone")
