"""What the stand-in of atomesh knows of its workers, how it chooses among them, and how it forwards a request.

What is known of the router and what is our choice stands in ``atomesh_simulation``.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import itertools
import json
import random
import time
from collections.abc import Mapping
from typing import Any, Literal

import aiohttp
import attrs
from aiohttp import web

from disagg_run.simulation.log import say

_HOP_HEADERS = {"host", "content-length", "connection", "transfer-encoding"}


class Unreachable(Exception):
    """A worker does not answer, or answers with a server error; ``status`` is what the client gets."""

    def __init__(self, worker: Worker, status: int, reason: str) -> None:
        super().__init__(f"{worker.role} worker {worker.url}: {reason}")
        self.worker = worker
        self.status = status


class Refused(Exception):
    """A worker refuses the request itself (4xx): the client gets the worker's own answer."""

    def __init__(self, status: int, body: str) -> None:
        super().__init__(body)
        self.status = status


@attrs.define(kw_only=True, eq=False)
class Worker:
    """One server behind the router."""

    url: str
    role: Literal["prefill", "decode"]
    registered: bool = False
    healthy: bool = False
    #: Health checks in a row that disagreed with ``healthy``.
    streak: int = 0
    #: Requests in flight.
    load: int = 0
    #: Failed requests in a row, and until when the circuit is open (monotonic seconds).
    failures: int = 0
    open_until: float = 0.0


class Router:
    """Workers, their health, and the choice among them."""

    def __init__(self, args: argparse.Namespace, session: aiohttp.ClientSession) -> None:
        self._args = args
        self._session = session
        self._turn = {"prefill": itertools.count(), "decode": itertools.count()}
        self.workers = [
            *(Worker(url=words[0].rstrip("/"), role="prefill") for words in args.prefill or ()),
            *(Worker(url=url.rstrip("/"), role="decode") for url in args.decode or ()),
        ]

    # --- health ---

    async def register(self, deadline: float) -> None:
        """Poll all workers until each has registered, or until ``deadline`` (monotonic seconds)."""
        while True:
            waiting = [worker for worker in self.workers if not worker.registered]
            for worker, well in zip(waiting, await asyncio.gather(*map(self._is_well, waiting)), strict=True):
                if well:
                    worker.registered = worker.healthy = True
                    say(f"INFO atomesh: added {worker.role} worker {worker.url}")
            missing = [worker.url for worker in self.workers if not worker.registered]
            left = deadline - time.monotonic()
            if not missing:
                return
            if left <= 0:
                say(f"WARN atomesh: gave up waiting for {', '.join(missing)}")
                return
            say(f"INFO atomesh: waiting for {len(missing)} workers: {', '.join(missing)}")
            await asyncio.sleep(min(self._args.worker_startup_check_interval, left))

    async def watch(self) -> None:
        """Check the registered workers' health for ever."""
        while True:
            await asyncio.sleep(self._args.health_check_interval_secs)
            registered = [worker for worker in self.workers if worker.registered]
            for worker, well in zip(registered, await asyncio.gather(*map(self._is_well, registered)), strict=True):
                self._note_health(worker, well)

    def _note_health(self, worker: Worker, well: bool) -> None:
        if well == worker.healthy:
            worker.streak = 0
            return
        worker.streak += 1
        needed = self._args.health_success_threshold if well else self._args.health_failure_threshold
        if worker.streak >= needed:
            worker.healthy, worker.streak = well, 0
            word = "healthy" if well else "unhealthy"
            say(f"WARN atomesh: {worker.role} worker {worker.url} is {word}")

    async def _is_well(self, worker: Worker) -> bool:
        limit = aiohttp.ClientTimeout(total=self._args.health_check_timeout_secs)
        try:
            async with self._session.get(worker.url + self._args.health_check_endpoint, timeout=limit) as response:
                return response.status == 200
        except (aiohttp.ClientError, asyncio.TimeoutError):
            return False

    # --- choice ---

    def usable(self, role: str) -> list[Worker]:
        """The workers of a role that may be chosen."""
        now = time.monotonic()
        return [w for w in self.workers if w.role == role and w.registered and w.healthy and w.open_until <= now]

    def choose(self, role: Literal["prefill", "decode"], body: Mapping[str, Any]) -> Worker:
        """One worker of a role by the policy; web.HTTPServiceUnavailable where there is none."""
        workers = self.usable(role)
        if not workers:
            raise web.HTTPServiceUnavailable(reason=f"no available {role} workers")
        policy = getattr(self._args, f"{role}_policy") or self._args.policy
        if policy == "random":
            return random.choice(workers)
        if policy == "round_robin":
            return workers[next(self._turn[role]) % len(workers)]
        if policy == "power_of_two":
            return min(random.sample(workers, min(2, len(workers))), key=lambda worker: worker.load)
        head = json.dumps(body.get("prompt") or body.get("messages") or "")[:512]
        return workers[int(hashlib.sha256(head.encode("utf-8", "surrogatepass")).hexdigest(), 16) % len(workers)]

    # --- requests ---

    async def forward(self, request: web.Request) -> web.StreamResponse:
        """Send a generation through prefill and decode."""
        raw = await request.read()
        try:
            body = json.loads(raw)
        except ValueError as error:
            raise web.HTTPBadRequest(reason=f"the body is no JSON: {error}".split("\n")[0]) from error
        attempts = 1 if self._args.disable_retries else 1 + self._args.retry_max_retries
        pause = self._args.retry_initial_backoff_ms / 1000
        for attempt in range(attempts):
            try:
                return await self._once(request, body)
            except Refused as error:
                return web.Response(status=error.status, text=str(error), content_type="application/json")
            except Unreachable as error:
                self._note_failure(error.worker)
                say(f"ERROR atomesh: {error}")
                if attempt == attempts - 1:
                    return error_answer(error.status, str(error))
            await asyncio.sleep(min(pause, self._args.retry_max_backoff_ms / 1000))
            pause *= self._args.retry_backoff_multiplier
        raise AssertionError("each attempt returns or fails")

    def _note_failure(self, worker: Worker) -> None:
        worker.failures += 1
        if not self._args.disable_circuit_breaker and worker.failures >= self._args.cb_failure_threshold:
            worker.open_until = time.monotonic() + self._args.cb_timeout_duration_secs
            worker.failures = 0

    async def _once(self, request: web.Request, body: Mapping[str, Any]) -> web.StreamResponse:
        prefill, decode = self.choose("prefill", body), self.choose("decode", body)
        headers = {name: value for name, value in request.headers.items() if name.lower() not in _HOP_HEADERS}
        first = {key: value for key, value in body.items() if key not in ("stream_options", "max_completion_tokens")}
        first |= {"max_tokens": 1, "stream": False, "kv_transfer_params": {"do_remote_decode": True}}
        async with _Counted(prefill), self._post(prefill, request.path, first, headers) as answer:
            handed = (await answer.json()).get("kv_transfer_params")
        if not handed:
            raise Unreachable(prefill, 502, "its answer has no kv_transfer_params")
        prefill.failures = 0
        second = {**body, "kv_transfer_params": handed}
        async with _Counted(decode), self._post(decode, request.path, second, headers) as answer:
            decode.failures = 0
            return await _relay(request, answer)

    def _post(self, worker: Worker, path: str, body: Mapping[str, Any], headers: Mapping[str, str]) -> _Post:
        return _Post(self._session.post(worker.url + path, json=body, headers=headers), worker)

    async def models(self, request: web.Request) -> web.Response:
        """The model list of the first usable worker."""
        workers = [*self.usable("prefill"), *self.usable("decode")]
        if not workers:
            return error_answer(503, "no available workers")
        try:
            async with self._session.get(workers[0].url + "/v1/models") as answer:
                return web.json_response(await answer.json(), status=answer.status)
        except aiohttp.ClientError as error:
            return error_answer(502, f"{workers[0].url}: {error}")

    async def readiness(self, request: web.Request) -> web.Response:
        """200 with one usable worker of each role; always 200 under ``--disable-health-check``."""
        counts = {role: len(self.usable(role)) for role in ("prefill", "decode")}
        well = self._args.disable_health_check or all(counts.values())
        return web.json_response({"status": "ready" if well else "not ready", **counts}, status=200 if well else 503)


class _Counted:
    """Counts a request in flight at a worker."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    async def __aenter__(self) -> None:
        self._worker.load += 1

    async def __aexit__(self, *_: object) -> None:
        self._worker.load -= 1


class _Post:
    """A request to a worker; a lost connection or a 5xx is Unreachable, a 4xx is Refused."""

    def __init__(self, sending: Any, worker: Worker) -> None:
        self._sending = sending
        self._worker = worker

    async def __aenter__(self) -> aiohttp.ClientResponse:
        try:
            answer: aiohttp.ClientResponse = await self._sending.__aenter__()
        except (aiohttp.ClientError, asyncio.TimeoutError) as error:
            raise Unreachable(self._worker, 502, str(error) or type(error).__name__) from error
        if answer.status >= 400:
            text = await answer.text()
            answer.release()
            raise Refused(answer.status, text) if answer.status < 500 else Unreachable(self._worker, 502, text[:500])
        return answer

    async def __aexit__(self, kind: Any, error: Any, trace: Any) -> None:
        await self._sending.__aexit__(kind, error, trace)


async def _relay(request: web.Request, answer: aiohttp.ClientResponse) -> web.StreamResponse:
    response = web.StreamResponse(status=answer.status, headers={"Content-Type": answer.headers["Content-Type"]})
    await response.prepare(request)
    try:
        async for chunk in answer.content.iter_any():
            await response.write(chunk)
    except aiohttp.ClientError as error:
        say(f"ERROR atomesh: decode worker lost in the middle of an answer: {error}")
        if request.transport is not None:
            request.transport.abort()
        return response
    await response.write_eof()
    return response


def error_answer(status: int, message: str) -> web.Response:
    """An error in OpenAI's shape."""
    kind = "service_unavailable" if status == 503 else "internal_error"
    return web.json_response({"error": {"message": message, "type": kind, "code": status}}, status=status)
