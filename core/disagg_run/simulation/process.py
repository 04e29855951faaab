"""The life of a stand-in process: start, load, listen, serve, end.

An engine's stand-in is an async function that takes a ``Stage`` and walks through the phases of its engine:

    async def life(stage: Stage) -> None:
        await stage.load()
        await stage.serve_uvicorn(app, bind(host, port))
        stage.ready()
        await stage.ended()
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Any, TypeVar

from aiohttp import web
from aiohttp.http_exceptions import BadHttpMessage

from disagg_run.simulation.faults import Faults
from disagg_run.simulation.listeners import BindError, Handler, bind, drop, serve_tcp
from disagg_run.simulation.log import complain, say
from disagg_run.simulation.options import Options

T = TypeVar("T")
Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Died(Exception):
    """The stand-in dies as its engine does: last words for stderr, and an exit code."""

    def __init__(self, message: str, exit_code: int = 1) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class Stage:
    """What a stand-in's life is built from; all that it opens is closed when the life ends."""

    def __init__(self, options: Options, faults: Faults, stack: AsyncExitStack) -> None:
        self.options = options
        self.faults = faults
        self._stack = stack
        #: Done when a background task failed, with its error.
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def log(self, line: str) -> None:
        """Write a line to the log."""
        say(line)

    async def load(self) -> None:
        """Take the time that loading the model takes; with ``--never-ready``, for ever."""
        if self.options.never_ready:
            await self.ended()
        await asyncio.sleep(self.options.load_s)

    def ready(self) -> None:
        """Say that loading is over."""
        self.faults.arm("ready")

    async def ended(self) -> None:
        """Wait for the end of the process."""
        await asyncio.get_running_loop().create_future()

    async def enter(self, opened: AbstractAsyncContextManager[T]) -> T:
        """Keep something open until the end: what is opened or started later is closed before it."""
        return await self._stack.enter_async_context(opened)

    async def serve_tcp(self, host: str, port: int, handler: Handler = drop) -> asyncio.Server:
        """Listen on a TCP port until the end."""
        server = await serve_tcp(host, port, handler)
        self._stack.callback(server.close)
        return server

    async def serve_http(self, app: web.Application, host: str, port: int) -> None:
        """Serve an application on a port until the end."""
        await self.serve_socket(app, bind(host, port))

    async def serve_socket(self, app: web.Application, bound: socket.socket) -> None:
        """Serve an application on a socket that is bound already."""
        app.middlewares.insert(0, self._pass_gate)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, handle_signals=False)
        await runner.setup()
        self._stack.push_async_callback(runner.cleanup)
        await web.SockSite(runner, bound).start()

    @web.middleware
    async def _pass_gate(self, request: web.Request, handler: Answer) -> web.StreamResponse:
        await self.faults.pass_gate()
        return await handler(request)

    async def serve_uvicorn(self, app: web.Application, bound: socket.socket) -> None:
        """Serve an application as uvicorn does, with its log lines."""
        self.log(f"INFO:     Started server process [{os.getpid()}]")
        await self.serve_socket(app, bound)
        self.log("INFO:     Application startup complete.")
        host, port = bound.getsockname()[:2]
        self.log(f"INFO:     Uvicorn running on http://{host}:{port} (Press CTRL+C to quit)")

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Do ``work`` in the background until the end; an error in it ends the stand-in."""
        task = asyncio.get_running_loop().create_task(work)
        task.add_done_callback(self._note)
        self._stack.callback(task.cancel)

    def _note(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None and not self.failed.done():
            self.failed.set_exception(error)


class _Garbage(logging.Filter):
    """Turns aiohttp's traceback about a request that is no HTTP/1 (a router trying gRPC) into uvicorn's line."""

    def filter(self, record: logging.LogRecord) -> bool:
        if record.exc_info and isinstance(record.exc_info[1], BadHttpMessage):
            say("WARNING:  Invalid HTTP request received.")
            return False
        return True


def run_stand_in(life: Callable[[Stage], Coroutine[Any, Any, None]], options: Options) -> int:
    """Run a stand-in's life to its end; returns the exit code of the process."""
    logging.getLogger("aiohttp.server").addFilter(_Garbage())
    try:
        return asyncio.run(_run(life, options))
    except BindError as error:
        sys.stderr.write(f"ERROR:    {error}\n")
        return 1
    except Died as error:
        complain(str(error))
        return error.exit_code


async def _run(life: Callable[[Stage], Coroutine[Any, Any, None]], options: Options) -> int:
    faults = Faults(options)
    faults.arm("start")
    stop = _stop_on_signals(options)
    async with AsyncExitStack() as stack:
        stage = Stage(options, faults, stack)
        living = asyncio.ensure_future(life(stage))
        stopping = asyncio.ensure_future(stop.wait())
        watched: list[asyncio.Future[Any]] = [living, stopping, stage.failed]
        await asyncio.wait(watched, return_when=asyncio.FIRST_COMPLETED)
        faults.disarm()
        if stage.failed.done():
            stage.failed.result()
        if living.done():
            living.result()
        if stop.is_set():
            stage.log("INFO:     Shutting down")
            await asyncio.sleep(options.term_s)
        for task in watched:
            task.cancel()
        await asyncio.wait(watched)
    return 0


def _stop_on_signals(options: Options) -> asyncio.Event:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    loop.add_signal_handler(signal.SIGINT, stop.set)
    if options.ignore_term:
        loop.add_signal_handler(signal.SIGTERM, say, "INFO:     SIGTERM ignored")
    else:
        loop.add_signal_handler(signal.SIGTERM, stop.set)
    return stop
