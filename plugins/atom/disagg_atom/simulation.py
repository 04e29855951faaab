"""The stand-in of ATOM's OpenAI server with the mooncake connector.

Known of the engine (ROCm/ATOM ffdf3bb5, its own parser and sources): the flags; that HTTP is refused until the model is
loaded and ``/health`` says ok whatever the engine does; the model id (``--served-model-name``, else ``--model`` as
typed); the keys of the mooncake config that it reads; the ports that it opens and that only a producer listens for
handshakes; that with DP attention TP counts as DP; that ``--port`` is never bound; whence it takes its address.

Our choice is how prefill and decode hand over KV (``simulation_peers``), and that a decode server without
``kv_transfer_params`` computes the prompt itself and says so in its log.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import attrs
from aiohttp import web

from disagg_atom.simulation_peers import COMPARED, Consumer, Producer
from disagg_run.simulation.arguments import after_program, build_parser, read_catalogue
from disagg_run.simulation.listeners import BindError, bind, node_address
from disagg_run.simulation.log import complain
from disagg_run.simulation.options import parse_options, split_words
from disagg_run.simulation.process import Died, Stage, run_stand_in
from disagg_run.simulation.server import ModelServer

PROGRAM = ("-m", "atom.entrypoints.openai_server")
_CATALOGUE = Path(__file__).parent / "catalogues" / "atom-openai-server.json"
_ROLES: Mapping[str, Literal["prefill", "decode"]] = {"kv_producer": "prefill", "kv_consumer": "decode"}


@attrs.frozen(kw_only=True)
class Settings:
    """What the server's arguments and environment come to."""

    model: str
    host: str
    port: int
    role: Literal["prefill", "decode", "both"]
    tp: int
    dp: int
    pp: int
    block_size: int
    #: What else prefill and decode must have in common, by the parser's names.
    compared: Mapping[str, Any]
    handshake_port: int
    max_model_len: int | None
    access_log: bool
    #: Address that it hands to decode servers.
    address: str
    #: Port and address of the DP group's rendezvous, and of torch's; 0 = any port.
    dp_master_ip: str
    dp_master_port: int
    dp_base_port: int

    @property
    def handshake_ports(self) -> tuple[int, ...]:
        """One port for each worker process: base + pp*dp*tp + dp*tp + tp of its indexes."""
        return tuple(range(self.handshake_port, self.handshake_port + self.pp * self.dp * self.tp))

    def shown(self) -> dict[str, Any]:
        """What a decode server is told of this one."""
        return {
            "block_size": self.block_size,
            **self.compared,
            "tp_size": self.tp,
            "dp_size": self.dp,
            "pp_size": self.pp,
        }


def read_settings(args: argparse.Namespace, environ: Mapping[str, str]) -> Settings:
    """Settings from parsed arguments; Died where the engine's own checks after parsing fail."""
    try:
        transfer = json.loads(args.kv_transfer_config or "{}")
        json.loads(args.cudagraph_capture_sizes)
    except ValueError as error:
        raise Died(f"json.decoder.JSONDecodeError: {error}") from error
    role = str(transfer.get("kv_role")) if transfer else ""
    if transfer and role not in _ROLES:
        raise Died(f"ValueError: kv_role must be one of {sorted(_ROLES)}, got {role!r}")
    tp, dp = args.tensor_parallel_size, args.data_parallel_size
    if args.enable_dp_attention:
        tp, dp = 1, tp * dp
    return Settings(
        model=args.served_model_name or args.model,
        host="0.0.0.0" if args.host in (None, "DEFAULT_HOST") else args.host,
        port=args.server_port or 8000,
        role=_ROLES.get(role, "both"),
        tp=tp,
        dp=dp,
        pp=args.pipeline_parallel_size,
        block_size=args.block_size,
        compared={name: getattr(args, name) for name in COMPARED},
        handshake_port=int(transfer.get("handshake_port", 6301)),
        max_model_len=args.max_model_len,
        access_log=not args.disable_uvicorn_access_log,
        address=environ.get("ATOM_HOST_IP") or node_address() or _route_address(),
        dp_master_ip=environ.get("ATOM_DP_MASTER_IP") or "127.0.0.1",
        dp_master_port=int(environ.get("ATOM_DP_MASTER_PORT") or 29500),
        dp_base_port=int(environ.get("ATOM_DP_BASE_PORT") or 0),
    )


def _route_address() -> str:
    """The address of the route to the internet, as the engine finds it; no packet is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("8.8.8.8", 80))
        except OSError:
            return "0.0.0.0"
        return str(probe.getsockname()[0])


async def _health(request: web.Request) -> web.Response:
    return web.json_response({"status": "ok"})


async def live(stage: Stage, settings: Settings) -> None:
    """The life of one server."""
    server = ModelServer(
        served_models=(settings.model,),
        options=stage.options,
        faults=stage.faults,
        owner="atom",
        max_model_len=settings.max_model_len,
        access_log=settings.access_log,
    )
    stage.log(f"INFO:     loading {settings.model} as {settings.role}: TP {settings.tp}, DP {settings.dp}")
    await _open_group_ports(stage, settings)
    await stage.load()
    if settings.role == "prefill":
        producer = Producer(settings, stage.options)
        server.exchange = producer
        for port in settings.handshake_ports:
            try:
                await stage.serve_tcp("0.0.0.0", port, producer.listener.handle)
            except BindError as error:
                raise Died(f"zmq.error.ZMQError: Address already in use (addr='tcp://*:{port}'): {error}") from error
    elif settings.role == "decode":
        server.exchange = Consumer(settings, server)
    app = server.application()
    app.router.add_get("/health", _health)
    await stage.serve_uvicorn(app, bind(settings.host, settings.port))
    stage.ready()
    await stage.ended()


async def _open_group_ports(stage: Stage, settings: Settings) -> None:
    """torch's rendezvous, and with DP the gloo group's."""
    ports = [settings.dp_base_port]
    if settings.dp > 1:
        ports.append(settings.dp_master_port)
    for port in ports:
        try:
            await stage.serve_tcp(settings.dp_master_ip, port)
        except BindError as error:
            raise Died(
                "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network "
                f"address. port: {port}, code: -98, name: EADDRINUSE: {error}"
            ) from error


def main(words: Sequence[str] | None = None) -> int:
    """Run the stand-in: its own options, ``--``, then the argv that it stands for."""
    own, argv = split_words(sys.argv[1:] if words is None else words)
    options = parse_options(own, prog="python3 -m disagg_atom.simulation", about="Stand-in of ATOM's OpenAI server.")
    parser = build_parser(read_catalogue(_CATALOGUE), prog="openai_server.py")
    args = parser.parse_args(after_program(argv, PROGRAM))
    try:
        settings = read_settings(args, os.environ)
    except Died as error:
        complain(str(error))
        return error.exit_code
    return run_stand_in(partial(live, settings=settings), options)


if __name__ == "__main__":
    sys.exit(main())
