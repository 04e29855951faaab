"""The stand-in of ``vllm serve``: head, headless follower or hybrid, as prefill, decode or alone.

Known of the engine (sources of 0.19.1 and 0.32.0; 0.32.0 run on a processor): flags of 0.32.0; that the HTTP port is
bound before the engine starts and refuses connections until it answers 200; that a taken one means exit code 1, and
SIGTERM exit code 0; that a MoRI-IO server registers with the router before its HTTP is open; the ports; which processes
serve HTTP when a worker spans nodes. Prefill and decode are in ``simulation_peers``, the core in ``simulation_core``.

Our choice: a worker that loses a node hangs; a follower that loses its head says so for ever (public reports) and
stays. Where a version other than 0.32.0 is stood for, its flags are taken for those of 0.32.0.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from aiohttp import web

from disagg_run.simulation.arguments import build_parser, catalogue_for, read_catalogue
from disagg_run.simulation.faults import Faults
from disagg_run.simulation.generations import Kind, read_generation
from disagg_run.simulation.joining import Rendezvous, join
from disagg_run.simulation.listeners import BindError, bind
from disagg_run.simulation.log import complain, say
from disagg_run.simulation.options import parse_options, split_words
from disagg_run.simulation.process import Died, Stage, run_stand_in
from disagg_run.simulation.server import ModelServer
from disagg_run.simulation.text import token_ids
from disagg_vllm.simulation_core import EngineCore
from disagg_vllm.simulation_peers import Peer
from disagg_vllm.simulation_registration import keep_registered, registers
from disagg_vllm.simulation_settings import Settings, read_settings

_CATALOGUES = Path(__file__).parent / "catalogues"


class Endpoints:
    """The routes beside OpenAI's."""

    def __init__(self, settings: Settings, core: EngineCore) -> None:
        self._settings = settings
        self._core = core

    def add_to(self, app: web.Application) -> None:
        """Add the routes to ``app``."""
        for path in ("/health", "/ping"):
            app.router.add_get(path, self._health)
        app.router.add_post("/ping", self._health)
        app.router.add_get("/version", self._version)
        app.router.add_get("/load", self._load)
        app.router.add_post("/v1/completions/render", partial(self._render, "text"))
        app.router.add_post("/v1/chat/completions/render", partial(self._render, "chat"))

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response(status=503 if self._core.dead else 200)

    async def _version(self, request: web.Request) -> web.Response:
        return web.json_response({"version": ".".join(map(str, self._settings.version))})

    async def _load(self, request: web.Request) -> web.Response:
        return web.json_response({"server_load": 0})

    async def _render(self, kind: Kind, request: web.Request) -> web.Response:
        """The prompt as token ids; routers ask for it to route by prefix."""
        generation = read_generation(kind, await request.read(), default_model=self._settings.served_models[0])
        rendered = {"request_id": generation.request_id, "token_ids": token_ids(generation.prompt)}
        body: Any = [rendered] if kind == "text" else rendered
        return web.json_response(body)


async def live(stage: Stage, settings: Settings) -> None:
    """The life of one process of a worker."""
    for warning in settings.warnings:
        stage.log(f"WARNING:  {warning}")
    server = ModelServer(
        served_models=settings.served_models,
        options=stage.options,
        faults=stage.faults,
        owner="vllm",
        max_model_len=settings.max_model_len,
        access_log=settings.access_log,
        api_keys=settings.api_keys,
    )
    bound = None if settings.headless else _bind_early(settings)
    core = EngineCore()
    stage.start(core.live())
    await _meet(stage, settings)
    await stage.load()
    peer = Peer(settings, server)
    server.exchange = core.guard(peer)
    await peer.open_ports(stage)
    if registers(settings):
        stage.start(keep_registered(settings))
    await asyncio.sleep(stage.options.slow_start_s)
    if bound is not None:
        stage.log(f"(APIServer pid={os.getpid()}) INFO Starting vLLM server on http://{settings.host}:{settings.port}")
        app = server.application()
        Endpoints(settings, core).add_to(app)
        await stage.serve_uvicorn(app, bound)
    stage.ready()
    await stage.ended()


def _bind_early(settings: Settings) -> Any:
    try:
        return bind(settings.host, settings.port, listen=False)
    except BindError as error:
        raise Died(f"OSError: [Errno 98] Address already in use: {error}") from error


async def _meet(stage: Stage, settings: Settings) -> None:
    """Join the other nodes of a worker: those of one TP group, and those of further DP ranks."""
    sizes = {"tp": settings.tp, "pp": settings.pp, "dp": settings.dp, "model": settings.model}
    if settings.nnodes > 1:
        shape = {**sizes, "nnodes": settings.nnodes}
        await _meet_at(stage, settings.master, settings.node_rank, settings.nnodes, shape)
    if settings.dp > settings.dp_local and settings.nnodes == 1:
        shape = {**sizes, "dp_local": settings.dp_local}
        nodes = -(-settings.dp // settings.dp_local)
        await _meet_at(stage, settings.dp_master, settings.dp_start // settings.dp_local, nodes, shape)


async def _meet_at(stage: Stage, place: tuple[str, int], rank: int, nodes: int, shape: dict[str, Any]) -> None:
    host, port = place
    if rank:
        joined = await join(host, port, rank, shape, stage.options.join_timeout_s)
        stage.start(_mourn(joined.until_lost(), host, port))
        return
    rendezvous = Rendezvous(nodes, shape, partial(_lost, stage.faults))
    try:
        await stage.serve_tcp(host, port, rendezvous.handle)
    except BindError as error:
        raise Died(f"RuntimeError: the server socket has failed to listen: EADDRINUSE: {error}") from error
    await rendezvous.joined(stage.options.join_timeout_s)


def _lost(faults: Faults, rank: int) -> None:
    complain(f"ERROR:    node {rank} is gone; collectives hang")
    faults.wedge()


async def _mourn(loss: Any, host: str, port: int) -> None:
    await loss
    while True:
        complain(f"ERROR:    connection to the head at {host}:{port} is lost")
        await asyncio.sleep(5)


def _after_serve(argv: Sequence[str]) -> list[str]:
    """The words after ``vllm serve``; wrappers may stand before them. Exits with 127 where they are not there."""
    for index, word in enumerate(argv):
        if Path(word).name == "vllm" and list(argv[index + 1 : index + 2]) == ["serve"]:
            return list(argv[index + 2 :])
    complain(f"{' '.join(argv[:3]) or 'no command'}: not found: expected vllm serve …")
    sys.exit(127)


def main(words: Sequence[str] | None = None) -> int:
    """Run the stand-in: its own options, ``--``, then the argv that it stands for."""
    own, argv = split_words(sys.argv[1:] if words is None else words)
    options = parse_options(own, prog="python3 -m disagg_vllm.simulation", about="Stand-in of vllm serve.")
    path, newest = catalogue_for(_CATALOGUES, "vllm-serve", options.catalogue_version)
    args = build_parser(read_catalogue(path), prog="vllm serve").parse_args(_after_serve(argv))
    try:
        settings = read_settings(args, os.environ, options.catalogue_version or newest)
    except Died as error:
        complain(str(error))
        return error.exit_code
    say(f"INFO:     vLLM {options.catalogue_version or newest}: {settings.model} as {settings.role}")
    return run_stand_in(partial(live, settings=settings), options)


if __name__ == "__main__":
    sys.exit(main())
