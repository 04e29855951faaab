"""The OpenAI-style HTTP server of a stand-in, as an aiohttp application.

An engine's stand-in gives it the model's name and an ``Exchange``: what happens between a request's arrival and its
first token (prefill computes and hands over KV, decode fetches it). Everything else is common to all engines.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Any

import attrs
from aiohttp import web

from disagg_run.simulation.faults import Faults
from disagg_run.simulation.generations import Generation, Kind, RequestError, chunks, read_generation, whole_answer
from disagg_run.simulation.log import say
from disagg_run.simulation.options import Options

Compute = Callable[[], Awaitable[None]]

#: Called with a request and ``compute``, which takes the time of a prefill; returns further keys for the answer.
Exchange = Callable[[Generation, Compute], Awaitable[Mapping[str, Any]]]

_LARGEST_BODY = 256 * 2**20


async def alone(generation: Generation, compute: Compute) -> Mapping[str, Any]:
    """The exchange of a server that has no peer."""
    await compute()
    return {}


@attrs.define(kw_only=True, eq=False)
class ModelServer:
    """One model behind HTTP."""

    #: Names that requests may use; the first is listed first.
    served_models: tuple[str, ...]
    options: Options
    faults: Faults
    exchange: Exchange = alone
    #: Whether a request that names another model is refused, or answered all the same.
    checks_model: bool = True
    #: Owner shown by ``/v1/models``.
    owner: str = "disagg-run"
    #: Longest context shown by ``/v1/models``; None = not shown.
    max_model_len: int | None = None
    #: Whether there is ``/metrics``.
    shows_metrics: bool = True
    #: Keys of which requests under ``/v1`` must bear one; () = none needed.
    api_keys: tuple[str, ...] = ()
    #: Whether each request is logged.
    access_log: bool = True
    #: Counts by name, shown by ``/metrics``.
    counters: dict[str, int] = attrs.field(factory=dict)

    def count(self, name: str) -> None:
        """Add one to a counter."""
        self.counters[name] = self.counters.get(name, 0) + 1

    def application(self) -> web.Application:
        """The application with the routes that all engines have; an engine adds its own (``/health`` among them)."""
        app = web.Application(middlewares=[self._middleware], client_max_size=_LARGEST_BODY)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/v1/completions", self._completions)
        app.router.add_post("/v1/chat/completions", self._chat)
        if self.shows_metrics:
            app.router.add_get("/metrics", self._metrics)
        return app

    @web.middleware
    async def _middleware(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        status = 500
        try:
            self._authorize(request)
            response = await handler(request)
            status = response.status
            return response
        except RequestError as error:
            status = error.status
            return web.json_response(error.body(), status=status)
        except web.HTTPException as error:
            status = error.status
            return web.json_response({"detail": error.reason}, status=status)
        finally:
            if self.access_log:
                self._log_access(request, status)

    def _authorize(self, request: web.Request) -> None:
        borne = request.headers.get("authorization", "").removeprefix("Bearer ")
        if self.api_keys and request.path.startswith("/v1/") and borne not in self.api_keys:
            raise RequestError(401, "Unauthorized")

    def _log_access(self, request: web.Request, status: int) -> None:
        peer = request.transport.get_extra_info("peername") if request.transport else None
        client = f"{peer[0]}:{peer[1]}" if peer else "-"
        phrase = HTTPStatus(status).phrase
        say(f'INFO:     {client} - "{request.method} {request.path_qs} HTTP/1.1" {status} {phrase}')

    async def _models(self, request: web.Request) -> web.Response:
        cards = [self._card(name) for name in self.served_models]
        return web.json_response({"object": "list", "data": cards})

    def _card(self, name: str) -> dict[str, Any]:
        card = {"id": name, "object": "model", "created": 0, "owned_by": self.owner, "root": name, "parent": None}
        return card if self.max_model_len is None else {**card, "max_model_len": self.max_model_len}

    async def _metrics(self, request: web.Request) -> web.Response:
        lines = (f"standin_{name}_total {value}\n" for name, value in sorted(self.counters.items()))
        return web.Response(text="".join(lines), content_type="text/plain")

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        return await self.generate(request, "text")

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        return await self.generate(request, "chat")

    async def generate(self, request: web.Request, kind: Kind) -> web.StreamResponse:
        """Answer one generation request, streamed or whole."""
        generation = read_generation(
            kind,
            await request.read(),
            request_id=request.headers.get("x-request-id", ""),
            default_model=self.served_models[0],
        )
        self._check(generation)
        extra = await self.exchange(generation, self._compute)
        self.count("generations")
        if generation.stream:
            return await self._stream(request, generation, extra)
        await asyncio.sleep(self.options.tpot_s * (generation.tokens - 1))
        await self.faults.pass_gate()
        return web.json_response(whole_answer(generation, extra))

    async def _compute(self) -> None:
        await asyncio.sleep(self.options.ttft_s)

    def _check(self, generation: Generation) -> None:
        if self.faults.next_generation_fails():
            raise RequestError(500, "injected fault: this generation fails")
        if self.checks_model and generation.model not in self.served_models:
            raise RequestError(404, f"The model `{generation.model}` does not exist.")
        longest = self.max_model_len
        if longest is not None and generation.prompt_tokens + generation.tokens > longest:
            raise RequestError(
                400,
                f"This model's maximum context length is {longest} tokens. However, you requested "
                f"{generation.prompt_tokens} prompt tokens and {generation.tokens} output tokens.",
            )

    async def _stream(
        self, request: web.Request, generation: Generation, extra: Mapping[str, Any]
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        try:
            await self._write_chunks(response, generation, extra)
        except ConnectionResetError:
            self.count("clients_gone")
        return response

    async def _write_chunks(
        self, response: web.StreamResponse, generation: Generation, extra: Mapping[str, Any]
    ) -> None:
        sent = 0
        for tokens, chunk in chunks(generation):
            if tokens and sent:
                await asyncio.sleep(self.options.tpot_s)
            await self.faults.pass_gate()
            sent += tokens
            if extra and not sent:
                chunk = {**chunk, **extra}
            await response.write(b"data: " + json.dumps(chunk, ensure_ascii=False).encode() + b"\n\n")
        await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
