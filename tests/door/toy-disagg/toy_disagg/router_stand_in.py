"""The stand-in of the toy router: prefill first, then decode with what prefill said of its KV."""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import aiohttp
from aiohttp import web

from disagg_run.simulation.arguments import after_program, build_parser, read_catalogue
from disagg_run.simulation.options import parse_options, split_words
from disagg_run.simulation.process import Stage, run_stand_in

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
CATALOGUE = Path(__file__).parent / "catalogues" / "toy-router.json"


class Router:
    """Takes the workers in turn."""

    def __init__(self, args: argparse.Namespace, session: aiohttp.ClientSession) -> None:
        self.session = session
        self.prefill, self.decode = itertools.cycle(args.prefill), itertools.cycle(args.decode)
        self.first = args.decode[0]

    async def models(self, request: web.Request) -> web.Response:
        async with self.session.get(f"{self.first}/v1/models") as answer:
            return web.json_response(await answer.json(), status=answer.status)

    async def generate(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        asked = {**body, "stream": False, "max_tokens": 1}
        async with self.session.post(next(self.prefill) + request.path, json=asked) as answer:
            if answer.status != 200:
                return web.Response(status=answer.status, text=await answer.text())
            handed = (await answer.json())["toy_kv"]
        async with self.session.post(next(self.decode) + request.path, json={**body, "toy_kv": handed}) as answer:
            return await self.relay(request, answer)

    async def relay(self, request: web.Request, answer: aiohttp.ClientResponse) -> web.StreamResponse:
        response = web.StreamResponse(status=answer.status, headers={"Content-Type": answer.headers["Content-Type"]})
        await response.prepare(request)
        try:
            async for piece in answer.content.iter_any():
                await response.write(piece)
        except aiohttp.ClientError as error:
            print(f"decode was lost in the middle of an answer: {error}", flush=True)
            if request.transport is not None:
                request.transport.abort()
        else:
            await response.write_eof()
        return response


@web.middleware
async def lost_workers(request: web.Request, handler: Handler) -> web.StreamResponse:
    """A worker that cannot be reached is a bad gateway."""
    try:
        return await handler(request)
    except aiohttp.ClientError as error:
        return web.Response(status=502, text=str(error))


async def live(stage: Stage, args: argparse.Namespace) -> None:
    """The life of the router."""
    async with aiohttp.ClientSession() as session:
        router = Router(args, session)
        app = web.Application(middlewares=[lost_workers])
        app.router.add_get("/v1/models", router.models)
        app.router.add_post("/v1/completions", router.generate)
        app.router.add_post("/v1/chat/completions", router.generate)
        await stage.serve_http(app, "0.0.0.0", args.port)
        stage.ready()
        await stage.ended()


def main() -> int:
    own, argv = split_words(sys.argv[1:])
    options = parse_options(own, prog="toy_disagg.router_stand_in", about="Stand-in of the toy router.")
    parser = build_parser(read_catalogue(CATALOGUE), prog="toy-router")
    return run_stand_in(partial(live, args=parser.parse_args(after_program(argv, ["toy-router"]))), options)


if __name__ == "__main__":
    sys.exit(main())
