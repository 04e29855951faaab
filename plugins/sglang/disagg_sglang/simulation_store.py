"""The stand-in of ``mooncake_master``, the service behind HiCache's store.

Known of the program (0.3.13.post1, run by its own argv): its flags and how gflags reads them (``mooncake_master.json``
has the types); that the metadata's HTTP opens first, a second later the metrics' HTTP and then the RPC port; what both
answer over HTTP; that a taken metadata port aborts it (SIGABRT), another taken port or a bad flag ends it with 1; that
SIGTERM ends it with 0; that a client puts ``mooncake/rpc_meta/NAME`` and ``mooncake/ram/NAME`` into the metadata,
mounts a segment NAME by RPC, and that the segment is gone with its client.

Our choice: the wire of the RPC port (``simulation_hicache`` is its client), and that nothing is stored.
"""

from __future__ import annotations

import asyncio
import json
import re
import resource
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import attrs
from aiohttp import web

from disagg_run.simulation.arguments import after_program
from disagg_run.simulation.listeners import BindError
from disagg_run.simulation.log import complain
from disagg_run.simulation.options import parse_options, split_words
from disagg_run.simulation.process import Died, Stage, run_stand_in

PROGRAM = ("mooncake_master",)
FLAGS_FILE = Path(__file__).with_name("mooncake_master.json")

#: What a shell says of a process that SIGABRT ended.
_ABORTED = 128 + signal.SIGABRT

_TRUE, _FALSE = ("1", "t", "true", "y", "yes"), ("0", "f", "false", "n", "no")
_INTEGER = re.compile(r"[+-]?\d+")
_NATURAL = re.compile(r"\d+")
_REAL = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?")
_SHAPES = {"int32": _INTEGER, "int64": _INTEGER, "uint32": _NATURAL, "uint64": _NATURAL, "double": _REAL}

_TEXT = "text/plain; version=0.0.4"


# --- arguments ---------------------------------------------------------------------------------------------------


def read_flags(words: Sequence[str], types: Mapping[str, str]) -> dict[str, str]:
    """What gflags makes of ``words``: the last text of each flag, by name.

    One dash or two; ``-`` in a name is ``_``; a value is in the same word or the next, but a boolean's only in the
    same: ``--flag``, ``--noflag``, ``--flag=false``. Other words are left alone. Died with all that is wrong, code 1.
    """
    found, problems = {}, []
    rest = iter(words)
    for word in rest:
        if word == "--":
            break
        if not word.startswith("-") or word == "-":
            continue
        given, equals, text = word.lstrip("-").partition("=")
        name = given.replace("-", "_")
        if name not in types and types.get(name.removeprefix("no")) == "bool" and not equals:
            found[name.removeprefix("no")] = "false"
        elif name not in types:
            problems.append(f"unknown command line flag '{given}'")
        elif types[name] == "bool":
            found[name] = text if equals else "true"
        elif equals:
            found[name] = text
        elif (value := next(rest, None)) is not None:
            found[name] = value
        else:
            problems.append(f"flag '--{name}' is missing its argument")
    problems += [
        f"illegal value '{text}' specified for {types[name]} flag '{name}'"
        for name, text in found.items()
        if not _fits(types[name], text)
    ]
    if problems:
        raise Died("\n".join(f"ERROR: {problem}" for problem in problems))
    return found


def _fits(kind: str, text: str) -> bool:
    if kind == "bool":
        return text.lower() in (*_TRUE, *_FALSE)
    return kind == "string" or _SHAPES[kind].fullmatch(text) is not None


@attrs.frozen(kw_only=True)
class Settings:
    """What the master's arguments come to."""

    rpc: tuple[str, int]
    metrics: tuple[str, int]
    #: None = it has no metadata server.
    metadata: tuple[str, int] | None


def read_settings(words: Sequence[str]) -> Settings:
    """Settings from the words after the program; Died where the parser refuses them."""
    types: Mapping[str, str] = json.loads(FLAGS_FILE.read_text(encoding="utf-8"))["types"]
    found = read_flags(words, types)
    serves_metadata = found.get("enable_http_metadata_server", "false").lower() in _TRUE
    rpc = int(found.get("rpc_port", 0)) or int(found.get("port", 50051))
    host, port = found.get("http_metadata_server_host", "0.0.0.0"), int(found.get("http_metadata_server_port", 8080))
    return Settings(
        rpc=(found.get("rpc_address", "0.0.0.0"), rpc),
        metrics=(found.get("metrics_host", "0.0.0.0"), int(found.get("metrics_port", 9003))),
        metadata=(host, port) if serves_metadata else None,
    )


# --- HTTP --------------------------------------------------------------------------------------------------------


@web.middleware
async def _plain_404(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Another path, or another method, is not found."""
    try:
        return await handler(request)
    except web.HTTPException:
        return web.Response(status=404, text="404 Not Found")


def metadata_application() -> web.Application:
    """The metadata server: texts by key, in memory."""
    kept: dict[str, bytes] = {}

    async def health(request: web.Request) -> web.Response:
        return web.Response(text="OK")

    async def metadata(request: web.Request) -> web.Response:
        key = request.query.get("key")
        if not key:
            return web.Response(status=400, text="Missing key parameter")
        if request.method == "PUT":
            kept[key] = await request.read()
            return web.Response(text="metadata updated")
        if key not in kept:
            return web.Response(status=404, text="metadata not found")
        if request.method == "GET":
            return web.Response(body=kept[key], content_type="application/json")
        del kept[key]
        return web.Response(text="metadata deleted")

    app = web.Application(middlewares=[_plain_404])
    app.router.add_get("/health", health)
    for method in ("GET", "PUT", "DELETE"):
        app.router.add_route(method, "/metadata", metadata)
    return app


class Segments:
    """The segments that clients have mounted, with their bytes."""

    def __init__(self) -> None:
        self._sizes: dict[str, int] = {}

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one client, whose segments stay until it is gone; a handler for ``Stage.serve_tcp``."""
        mounted: list[str] = []
        try:
            while line := await reader.readline():
                asked = json.loads(line)
                name, size = str(asked["mount"]), int(asked["bytes"])
                taken = name in self._sizes
                if not taken:
                    self._sizes[name] = size
                    mounted.append(name)
                writer.write(json.dumps({"error": "SEGMENT_ALREADY_EXISTS"} if taken else {}).encode() + b"\n")
                await writer.drain()
        except (ConnectionError, ValueError, KeyError, TypeError):
            pass  # a client that died, or no client of ours: a probe
        finally:
            for name in mounted:
                del self._sizes[name]
            writer.close()

    def application(self) -> web.Application:
        """The metrics' server, which also tells what is stored."""
        app = web.Application(middlewares=[_plain_404])
        state = {"status": "ok", "role": "leader", "ha_state": "serving", "service_ready": True}
        body = json.dumps({**state, "leader_address": None, "view_version": None}, separators=(",", ":"))
        missing = '{"success":false,"error_code":-704,"error_message":"OBJECT_NOT_FOUND"}'
        _answer(app, "/health", lambda: body, content_type="application/json; charset=utf-8")
        _answer(app, "/role", lambda: "leader", content_type="text/plain; charset=utf-8")
        _answer(app, "/get_all_segments", lambda: "".join(f"{name}\n" for name in sorted(self._sizes)))
        _answer(app, "/get_all_keys", lambda: "")
        _answer(app, "/query_key", lambda: missing, content_type="application/json; charset=utf-8", status=404)
        _answer(app, "/metrics", self._metrics)
        return app

    def _metrics(self) -> str:
        gauges = {
            "master_allocated_bytes": ("Total memory bytes currently allocated across all segments", 0),
            "master_total_capacity_bytes": ("Total memory capacity across all mounted segments", self.capacity),
        }
        return "".join(
            f"# HELP {name} {about}\n# TYPE {name} gauge\n{name} {value}\n" for name, (about, value) in gauges.items()
        )

    @property
    def capacity(self) -> int:
        """Bytes of all segments."""
        return sum(self._sizes.values())


def _answer(
    app: web.Application, path: str, text: Callable[[], str], *, content_type: str = _TEXT, status: int = 200
) -> None:
    async def handler(request: web.Request) -> web.Response:
        return web.Response(status=status, body=text().encode(), headers={"Content-Type": content_type})

    app.router.add_get(path, handler)


# --- life --------------------------------------------------------------------------------------------------------


async def live(stage: Stage, settings: Settings) -> None:
    """The life of the master."""
    segments = Segments()
    if settings.metadata is not None:
        host, port = settings.metadata
        try:
            await stage.serve_http(metadata_application(), host, port)
        except BindError as error:
            complain(f"E http_metadata_server.cpp: Failed to start HTTP metadata server on {host}:{port}: {error}")
            raise Died("F master.cpp: Failed to start HTTP metadata server", _ABORTED) from error
        stage.log(f"I http_metadata_server.cpp: HTTP metadata server started on {host}:{port}")
    await stage.load()
    await _open(partial(stage.serve_http, segments.application()), "master admin server", settings.metrics)
    stage.log(f"I master_admin_service.cpp: Master admin server started on port {settings.metrics[1]}")
    await _open(partial(stage.serve_tcp, handler=segments.handle), "RPC server", settings.rpc)
    stage.log(f"I master.cpp: Master service started on port {settings.rpc[1]}")
    stage.ready()
    await stage.ended()


async def _open(serve: Callable[..., Awaitable[Any]], what: str, place: tuple[str, int]) -> None:
    host, port = place
    try:
        await serve(host=host, port=port)
    except BindError as error:
        raise Died(f"E master.cpp: Failed to start {what} on {host}:{port}: {error}") from error


def main(words: Sequence[str] | None = None) -> int:
    """Run the stand-in: its own options, ``--``, then the argv that it stands for."""
    own, argv = split_words(sys.argv[1:] if words is None else words)
    options = parse_options(own, prog="python3 -m disagg_sglang.simulation_store", about="Stand-in of mooncake_master.")
    try:
        settings = read_settings(after_program(argv, PROGRAM))
    except Died as error:
        complain(str(error))
        return error.exit_code
    code = run_stand_in(partial(live, settings=settings), options)
    if code == _ABORTED:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # it ends as the program does, but leaves no core file
        signal.raise_signal(signal.SIGABRT)
    return code


if __name__ == "__main__":
    sys.exit(main())
