"""The stand-in of the toy server: ``python -m toy_disagg.server_stand_in [options] -- toy-server …``."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from aiohttp import web

from disagg_run.simulation.arguments import after_program, build_parser, read_catalogue
from disagg_run.simulation.generations import Generation, RequestError
from disagg_run.simulation.listeners import node_address
from disagg_run.simulation.options import parse_options, split_words
from disagg_run.simulation.peers import KvClient, KvListener, KvStore, PeerError
from disagg_run.simulation.process import Stage, run_stand_in
from disagg_run.simulation.server import Compute, ModelServer

CATALOGUE = Path(__file__).parent / "catalogues" / "toy-server.json"


class Link:
    """What stands between a request and its first token: prefill offers KV, decode fetches it."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.config: Mapping[str, Any] = args.kv_config or {}
        self.settings = {"block_size": args.block_size}
        self.store = KvStore()

    async def __call__(self, generation: Generation, compute: Compute) -> Mapping[str, Any]:
        offer = generation.body.get("toy_kv")
        if self.config.get("role") == "producer":
            await compute()
            self.store.offer(generation.digest, generation.digest, hold_s=30)
            return {"toy_kv": {"host": node_address() or "127.0.0.1", "port": self.config["handshake_port"]}}
        if offer is None:
            await compute()
            return {}
        try:
            await KvClient().fetch(offer["host"], offer["port"], generation.digest, 10)
        except PeerError as error:
            raise RequestError(500, f"no KV came from prefill: {error}") from error
        return {}


async def _health(request: web.Request) -> web.Response:
    return web.Response(text="ok")


async def live(stage: Stage, args: argparse.Namespace) -> None:
    """The life of one server process."""
    link = Link(args)
    if args.node_rank:
        await _join(args.group)
        await stage.ended()
    if args.nodes > 1:
        host, _, port = args.group.rpartition(":")
        await stage.serve_tcp(host, int(port))
    await stage.load()
    server = ModelServer(
        served_models=(args.served_model_name,), options=stage.options, faults=stage.faults, exchange=link
    )
    app = server.application()
    app.router.add_get("/health", _health)
    if link.config.get("role") == "producer":
        await stage.serve_tcp("0.0.0.0", link.config["handshake_port"], KvListener(link.store, link.settings).handle)
    await stage.serve_http(app, args.host, args.port)
    stage.ready()
    await stage.ended()


async def _join(group: str) -> None:
    """A follower waits for its head's port."""
    host, _, port = group.rpartition(":")
    while True:
        try:
            _, writer = await asyncio.open_connection(host, int(port))
        except OSError:
            await asyncio.sleep(0.1)
        else:
            writer.close()
            return


def main() -> int:
    own, argv = split_words(sys.argv[1:])
    options = parse_options(own, prog="toy_disagg.server_stand_in", about="Stand-in of the toy server.")
    parser = build_parser(read_catalogue(CATALOGUE), prog="toy-server")
    return run_stand_in(partial(live, args=parser.parse_args(after_program(argv, ["toy-server"]))), options)


if __name__ == "__main__":
    sys.exit(main())
