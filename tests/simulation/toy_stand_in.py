"""A stand-in of an engine that does not exist, as a plugin author would write it: one server, no peer."""

from __future__ import annotations

import argparse
import sys
from functools import partial
from typing import Any

from aiohttp import web

from disagg_run.simulation.arguments import after_program, build_parser
from disagg_run.simulation.listeners import bind
from disagg_run.simulation.options import parse_options, split_words
from disagg_run.simulation.process import Stage, run_stand_in
from disagg_run.simulation.server import ModelServer

CATALOGUE: dict[str, Any] = {
    "flags": [
        {"names": ["--port"], "arity": 1, "type": "int", "default": 8000},
        {"names": ["--mode"], "arity": 1, "type": "str", "choices": ["fast", "slow"]},
        {"names": ["--config"], "arity": 1, "type": "json.loads"},
    ]
}


async def health(request: web.Request) -> web.Response:
    return web.Response()


async def live(stage: Stage, args: argparse.Namespace) -> None:
    server = ModelServer(served_models=("toy",), options=stage.options, faults=stage.faults, max_model_len=4096)
    await stage.load()
    app = server.application()
    app.router.add_get("/health", health)
    await stage.serve_uvicorn(app, bind("0.0.0.0", args.port))
    stage.ready()
    await stage.ended()


if __name__ == "__main__":
    own, argv = split_words(sys.argv[1:])
    options = parse_options(own, prog="toy", about="Stand-in of a toy.")
    arguments = build_parser(CATALOGUE, prog="toy-server").parse_args(after_program(argv, ["toy-server"]))
    sys.exit(run_stand_in(partial(live, args=arguments), options))
