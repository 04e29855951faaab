"""The stand-in of SGLang's server, head or follower, as prefill, decode or alone.

Known of the engine (its sources and parsers, 0.5.9 to 0.5.23): the flags; that HTTP opens when the model is loaded
and ``/health`` is 503 until the warm-up is over, then generates a token; the ports of DP attention and of the bootstrap
server; that a follower answers only ``/ping``, ``/health`` and ``/health_generate``, on the same port, once its ranks
are ready. Prefill and decode are in ``simulation_peers``, HiCache's store in ``simulation_hicache``.

Our choice: a worker that loses a follower stops answering (a collective that hangs); a follower that loses its head
says so for ever (as public reports tell) and stays.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import attrs
from aiohttp import web

from disagg_run.simulation.arguments import after_program, build_parser, catalogue_for, read_catalogue, version_key
from disagg_run.simulation.faults import Faults
from disagg_run.simulation.joining import Rendezvous, join
from disagg_run.simulation.listeners import BindError, bind
from disagg_run.simulation.log import complain
from disagg_run.simulation.options import Options, parse_options, split_words
from disagg_run.simulation.process import Died, Stage, run_stand_in
from disagg_run.simulation.server import ModelServer
from disagg_sglang.simulation_hicache import attach_to_store
from disagg_sglang.simulation_peers import DecodePeer, PrefillPeer, serve_bootstrap

PROGRAM = ("-m", "sglang.launch_server")
_CATALOGUES = Path(__file__).parent / "catalogues"
#: How long the engine waits for the first of its derived ports to become free.
_PORT_WAIT_S = 30.0


@attrs.frozen(kw_only=True)
class Settings:
    """What the server's arguments come to."""

    args: argparse.Namespace
    #: Version of the parser.
    version: tuple[int, ...]
    model: str
    host: str
    port: int
    mode: Literal["null", "prefill", "decode"]
    tp: int
    pp: int
    dp: int
    dp_attention: bool
    nnodes: int
    node_rank: int
    #: Host and port of ``--dist-init-addr``; None without it.
    dist_init: tuple[str, int] | None
    bootstrap_port: int

    def shape(self) -> dict[str, Any]:
        """What all nodes of one worker must agree on."""
        return {"nnodes": self.nnodes, "tp": self.tp, "pp": self.pp, "dp": self.dp, "model": self.args.model_path}


def read_settings(args: argparse.Namespace, version: str) -> Settings:
    """Settings from parsed arguments; Died where the engine's own checks after parsing fail."""
    attention_dp = getattr(args, "attn_dp_size", None) or 1
    dp = max(_size(args, "dp_size", "data_parallel_size"), attention_dp)
    tp = _size(args, "tp_size", "tensor_parallel_size")
    if not args.model_path:
        raise Died("launch_server.py: error: the following arguments are required: --model-path/--model", 2)
    dp_attention = bool(args.enable_dp_attention) or attention_dp > 1
    if dp_attention and tp % dp:
        raise Died(f"AssertionError: tp_size ({tp}) must be divisible by dp_size ({dp})")
    nnodes, node_rank = args.nnodes or 1, args.node_rank or 0
    if not 0 <= node_rank < nnodes:
        raise Died(f"AssertionError: node_rank {node_rank} is not below nnodes {nnodes}")
    pp = _size(args, "pp_size", "pipeline_parallel_size")
    if tp * pp % nnodes:
        raise Died(f"AssertionError: tp_size * pp_size ({tp * pp}) must be divisible by number of nodes ({nnodes})")
    if nnodes > 1 and not args.dist_init_addr:
        raise Died("AssertionError: multi-node serving needs --dist-init-addr")
    return Settings(
        args=args,
        version=version_key(version),
        model=args.served_model_name or args.model_path,
        host=args.host or "127.0.0.1",
        port=args.port or 30000,
        mode=args.disaggregation_mode or "null",
        tp=tp,
        pp=pp,
        dp=dp,
        dp_attention=dp_attention,
        nnodes=nnodes,
        node_rank=node_rank,
        dist_init=_host_port(args.dist_init_addr) if args.dist_init_addr else None,
        bootstrap_port=args.disaggregation_bootstrap_port or 8998,
    )


def _size(args: argparse.Namespace, *names: str) -> int:
    """A size by whichever of its names this version's parser lists first."""
    return next((int(value) for name in names if (value := getattr(args, name, None))), 1)


def _host_port(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal():
        raise Died(f"ValueError: --dist-init-addr must be host:port, got {text!r}")
    return host.strip("[]"), int(port)


# --- ports -------------------------------------------------------------------------------------------------------


async def open_engine_ports(stage: Stage, settings: Settings, rendezvous: Rendezvous) -> None:
    """The ports of a head beside HTTP and bootstrap: torch's store, and those of DP attention."""
    count = 7 if settings.version >= (0, 5, 14) else 6
    if settings.dist_init is not None:
        host, first = settings.dist_init
        await _open(stage, host, first, rendezvous.handle)
        if settings.dp_attention:
            for port in (*range(first + 1, first + count), first + 13):
                await _open(stage, host, port)
        return
    await _open(stage, "127.0.0.1", settings.args.nccl_port or 0)
    if settings.dp_attention:
        base = settings.port + 233
        if base > 65535:
            base = settings.port - 233
        await _wait_free(base)
        for port in range(base + 1, base + count):
            await _open(stage, "127.0.0.1", port)
        with bind(settings.host, settings.port + 13):
            pass  # the engine holds it for a moment only


async def _open(stage: Stage, host: str, port: int, handler: Any = None) -> None:
    try:
        await (stage.serve_tcp(host, port, handler) if handler else stage.serve_tcp(host, port))
    except BindError as error:
        raise Died(f"zmq.error.ZMQError: Address already in use (addr='tcp://{host}:{port}'): {error}") from error


async def _wait_free(port: int) -> None:
    deadline = asyncio.get_running_loop().time() + _PORT_WAIT_S
    while True:
        try:
            bind("127.0.0.1", port).close()
            return
        except BindError as error:
            if asyncio.get_running_loop().time() > deadline:
                raise Died(f"ValueError: port {port} is not available in {_PORT_WAIT_S:g} seconds: {error}") from error
        await asyncio.sleep(0.5)


# --- HTTP --------------------------------------------------------------------------------------------------------


class Endpoints:
    """The routes beside OpenAI's."""

    def __init__(self, settings: Settings, options: Options) -> None:
        self._settings = settings
        self._options = options
        self.warm = False

    def add_to(self, app: web.Application) -> None:
        """Add the routes to ``app``."""
        for path in ("/health", "/health_generate"):
            app.router.add_get(path, self._health)
        for path in ("/server_info", "/get_server_info"):
            app.router.add_get(path, self._server_info)
        for path in ("/model_info", "/get_model_info"):
            app.router.add_get(path, self._model_info)
        app.router.add_get("/get_load", self._load)
        app.router.add_get("/ping", _pong)

    async def _health(self, request: web.Request) -> web.Response:
        if not self.warm:
            return web.Response(status=503)
        await asyncio.sleep(self._options.ttft_s)  # it generates a token
        return web.Response()

    async def _server_info(self, request: web.Request) -> web.Response:
        settings = self._settings
        info = {name: value for name, value in vars(settings.args).items() if value is not None}
        shown = {"served_model_name": settings.model, "tp_size": settings.tp, "dp_size": settings.dp}
        version = ".".join(map(str, settings.version))
        return web.json_response({**info, **shown, "status": "ready", "version": version, "internal_states": []})

    async def _model_info(self, request: web.Request) -> web.Response:
        path = self._settings.args.model_path
        return web.json_response({"model_path": path, "tokenizer_path": path, "is_generation": True})

    async def _load(self, request: web.Request) -> web.Response:
        load = {"num_reqs": 0, "num_waiting_reqs": 0, "num_tokens": 0}
        return web.json_response([{"dp_rank": rank, **load} for rank in range(self._settings.dp)])


async def _pong(request: web.Request) -> web.Response:
    return web.Response()


# --- lives -------------------------------------------------------------------------------------------------------


async def live_as_head(stage: Stage, settings: Settings) -> None:
    """The life of a worker's head, or of a worker on one node."""
    given = ", ".join(f"{name}={value!r}" for name, value in vars(settings.args).items() if value)
    stage.log(f"server_args: {given}")
    rendezvous = Rendezvous(settings.nnodes, settings.shape(), partial(_lost, stage.faults))
    await open_engine_ports(stage, settings, rendezvous)
    server = ModelServer(
        served_models=(settings.model,),
        options=stage.options,
        faults=stage.faults,
        checks_model=False,
        shows_metrics=settings.args.enable_metrics,
        owner="sglang",
        max_model_len=settings.args.context_length,
    )
    if settings.mode == "prefill":
        table = await serve_bootstrap(stage, settings.host, settings.bootstrap_port, settings.nnodes)
        server.exchange = await PrefillPeer.start(stage, settings, table)
    elif settings.mode == "decode":
        server.exchange = DecodePeer(settings, server)
    await rendezvous.joined(stage.options.join_timeout_s)
    await stage.load()
    await attach_to_store(stage, settings)
    app = server.application()
    endpoints = Endpoints(settings, stage.options)
    endpoints.add_to(app)
    await stage.serve_uvicorn(app, bind(settings.host, settings.port))
    await asyncio.sleep(stage.options.slow_start_s)
    endpoints.warm = True
    stage.log("The server is fired up and ready to roll!")
    stage.ready()
    await stage.ended()


def _lost(faults: Faults, rank: int) -> None:
    complain(f"ERROR:    node {rank} is gone; collectives hang")
    faults.wedge()


async def live_as_follower(stage: Stage, settings: Settings) -> None:
    """The life of a worker's further node."""
    assert settings.dist_init is not None  # read_settings saw to it
    head, port = settings.dist_init
    joined = await join(head, port, settings.node_rank, settings.shape(), stage.options.join_timeout_s)
    if settings.mode == "prefill":
        await PrefillPeer.start_follower(stage, settings)
    await stage.load()
    await attach_to_store(stage, settings)
    app = web.Application()
    for path in ("/ping", "/health", "/health_generate"):
        app.router.add_get(path, _pong)
    await stage.serve_uvicorn(app, bind(settings.host, settings.port))
    stage.ready()
    await joined.until_lost()
    while True:
        complain(f"ERROR:    connection to the head at {head}:{port} is lost")
        await asyncio.sleep(5)


def main(words: Sequence[str] | None = None) -> int:
    """Run the stand-in: its own options, ``--``, then the argv that it stands for."""
    own, argv = split_words(sys.argv[1:] if words is None else words)
    options = parse_options(own, prog="python3 -m disagg_sglang.simulation", about="Stand-in of SGLang's server.")
    rest = after_program(argv, PROGRAM)
    path, version = catalogue_for(_CATALOGUES, "sglang-launch-server", options.catalogue_version)
    args = build_parser(read_catalogue(path), prog="launch_server.py").parse_args(rest)
    try:
        settings = read_settings(args, options.catalogue_version or version)
    except Died as error:
        complain(str(error))
        return error.exit_code
    live = live_as_follower if settings.node_rank else live_as_head
    return run_stand_in(partial(live, settings=settings), options)


if __name__ == "__main__":
    sys.exit(main())
