"""The stand-in of atomesh, ATOM's router; it is not on PyPI.

Known of the router (ROCm/ATOM ffdf3bb5, its own parser and sources): the flags; that HTTP is bound once all workers
have registered, or ``--worker-startup-timeout-secs`` + 60 s after the start; ``/health`` and ``/liveness`` are always
200; ``/readiness`` needs one healthy prefill and one healthy decode worker, and means nothing under
``--disable-health-check``; ``/v1/models`` is 503 with no worker; a taken Prometheus port is a panic.

Our choice, after sglang-router 0.3.2 of which it is a relative: a worker registers when its health endpoint answers
200; what goes over the wire (prefill first, with ``max_tokens`` 1 and ``kv_transfer_params``, then decode with what
prefill returned); log lines; the answers about dead workers (502 for one that fails, 503 where none is left).
Policies that follow prefixes or loads inside an engine are stood for by a hash of the prompt.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import aiohttp
from aiohttp import web

from disagg_atom.atomesh_routing import Router
from disagg_run.simulation.arguments import build_parser, read_catalogue
from disagg_run.simulation.listeners import BindError
from disagg_run.simulation.log import complain, say
from disagg_run.simulation.options import parse_options, split_words
from disagg_run.simulation.process import Died, Stage, run_stand_in

_CATALOGUE = Path(__file__).parent / "catalogues" / "atomesh.json"


async def _ok(request: web.Request) -> web.Response:
    return web.Response(text="OK")


async def live(stage: Stage, args: argparse.Namespace) -> None:
    """The life of the router."""
    await _serve_prometheus(stage, args)
    limit = aiohttp.ClientTimeout(total=args.request_timeout_secs)
    # Opened by the stage, since it must outlive the server that answers by it.
    session = await stage.enter(aiohttp.ClientSession(timeout=limit, connector=aiohttp.TCPConnector(limit=0)))
    router = Router(args, session)
    say(f"INFO atomesh: starting with {len(router.workers)} workers, policy {args.policy}")
    started = time.monotonic()
    if stage.options.never_ready:
        await stage.ended()
    await router.register(started + args.worker_startup_timeout_secs + stage.options.startup_grace_s)
    if not args.disable_health_check:
        stage.start(router.watch())
    app = web.Application(client_max_size=args.max_payload_size)
    app.router.add_get("/health", _ok)
    app.router.add_get("/liveness", _ok)
    app.router.add_get("/readiness", router.readiness)
    app.router.add_get("/v1/models", router.models)
    app.router.add_post("/v1/completions", router.forward)
    app.router.add_post("/v1/chat/completions", router.forward)
    # An IPv6 address stands in brackets, since the router reads host and port as one text.
    await stage.serve_http(app, args.host.strip("[]"), args.port)
    stage.log(f"INFO atomesh: listening on {args.host}:{args.port}")
    stage.ready()
    await stage.ended()


async def _serve_prometheus(stage: Stage, args: argparse.Namespace) -> None:
    app = web.Application()
    app.router.add_get("/metrics", _ok)
    try:
        await stage.serve_http(app, args.prometheus_host, args.prometheus_port)
    except BindError as error:
        raise Died(
            "thread 'main' panicked at 'failed to install Prometheus metrics exporter: "
            f"FailedToCreateHTTPListener({str(error)!r})'",
            exit_code=101,
        ) from error


def _check(args: argparse.Namespace) -> None:
    if args.pd_disaggregation and not (args.prefill and args.decode):
        raise Died("error: PD disaggregation needs at least one --prefill and one --decode worker")
    if args.backend not in ("atom", "sglang", "vllm"):
        raise Died(f"error: invalid value '{args.backend}' for '--backend <BACKEND>'", exit_code=2)


def main(words: Sequence[str] | None = None) -> int:
    """Run the stand-in: its own options, ``--``, then the argv that it stands for."""
    own, argv = split_words(sys.argv[1:] if words is None else words)
    options = parse_options(own, prog="python3 -m disagg_atom.atomesh_simulation", about="Stand-in of atomesh.")
    parser = build_parser(read_catalogue(_CATALOGUE), prog="atomesh launch", style="clap")
    program, rest = argv[:2], argv[2:]
    if len(program) < 2 or Path(program[0]).name != "atomesh" or program[1] != "launch":
        sys.stderr.write(f"{' '.join(program)}: not found: expected atomesh launch …\n")
        return 127
    args = parser.parse_args(rest)
    try:
        _check(args)
    except Died as error:
        complain(str(error))
        return error.exit_code
    return run_stand_in(partial(live, args=args), options)


if __name__ == "__main__":
    sys.exit(main())
