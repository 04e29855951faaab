"""Proofs of readiness: a port accepts, a path answers, a generation comes back, and it is our process that does it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import attrs

from disagg_run.errors import CanaryError, GateTimeout, PreflightError
from disagg_run.planning.document import Ready
from disagg_run.running import sockets
from disagg_run.running.output import until_printed
from disagg_run.running.supervisor import Running

if TYPE_CHECKING:
    import httpx

#: Pauses between two tries, in seconds. Connecting to a closed port of this machine costs next to nothing and is done
#: often; an answer that says "not yet" is work for the server and is asked for less and less often.
_FIRST_S = 0.03
_CLOSED_S = 0.1
_MOST_S = 1.0
#: For one answer, in seconds; a health path that generates a token can take over one.
ANSWER_S = 10.0
_CONNECT_S = 2.0
#: Tokens of a generation that is a probe.
PROBE_TOKENS = 4


def http_client() -> httpx.AsyncClient:
    """A client for the run's own addresses: no proxy of the environment, no certificates, no connections kept."""
    import httpx

    return httpx.AsyncClient(
        trust_env=False,
        verify=False,
        timeout=httpx.Timeout(ANSWER_S, connect=_CONNECT_S),
        limits=httpx.Limits(max_keepalive_connections=0),
    )


def place(target: str) -> tuple[str, int]:
    """Host and port of a URL or of ``host:port``."""
    parts = urlsplit(target if "//" in target else f"//{target}")
    return parts.hostname or "", parts.port or 80


async def closed(target: str) -> str:
    """Why nothing accepts at ``target``; "" where something does."""
    host, port = place(target)
    try:
        _, writer = await asyncio.wait_for(asyncio.open_connection(host, port), _CONNECT_S)
    except asyncio.TimeoutError:
        return f"{host} port {port} does not answer"
    except OSError as error:
        if isinstance(error, ConnectionRefusedError):
            return f"nothing listens on {host} port {port}"
        return f"{host} port {port}: {error.strerror or error}"
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return ""


def generation_body(url: str, model: str, *, tokens: int, stream: bool = False, prompt: str = "") -> dict[str, Any]:
    """The body of a completion, or of a chat completion where the path is that one's."""
    text = prompt or "Say one word."
    asked: dict[str, Any] = {"model": model, "max_tokens": tokens, "temperature": 0, "stream": stream}
    if urlsplit(url).path.rstrip("/").endswith("/chat/completions"):
        return {**asked, "messages": [{"role": "user", "content": text}]}
    return {**asked, "prompt": text}


@attrs.frozen(kw_only=True)
class Lack:
    """What a proof still lacks; false where it lacks nothing."""

    #: In words; "" = nothing.
    text: str = ""
    #: HTTP status of the answer that was no proof; 0 where there was none.
    status: int = 0

    def __bool__(self) -> bool:
        return bool(self.text)

    def __str__(self) -> str:
        return self.text

    @property
    def refused(self) -> bool:
        """Whether something answered that it will not do what was asked; 503 says that it cannot do it yet."""
        return self.status >= 400 and self.status != 503


class Prober:
    """Asks the probes of a plan."""

    def __init__(self, client: httpx.AsyncClient, model: str) -> None:
        self._client = client
        self._model = model

    async def lacking(self, ready: Ready, answer_s: float = ANSWER_S) -> Lack:
        """What ``ready`` still lacks; nothing where it is proved (ownership aside).

        ``answer_s``: seconds that each answer may take.
        """
        if ready.kind == "tcp":
            return Lack(text=await closed(ready.target))
        if ready.kind == "http":
            lack = (await self._ask("GET", ready.target, None, answer_s))[2]
        elif ready.kind == "generation":
            model = ready.identity.get("served_model") or self._model
            lack = await self.generate(ready.target, model, timeout_s=answer_s)
        else:
            raise AssertionError(f"an exit is awaited, not asked for: {ready.kind}")
        return lack or await self._identity(ready, answer_s)

    async def generate(self, url: str, model: str, *, timeout_s: float = ANSWER_S) -> Lack:
        """Why one generation does not come back from ``url``; nothing where it does."""
        body = generation_body(url, model, tokens=PROBE_TOKENS)
        status, data, lack = await self._ask("POST", url, body, timeout_s)
        if lack:
            return lack
        choices = data.get("choices") if isinstance(data, dict) else None
        return Lack() if choices else Lack(text=f"{url} answers {status} without a completion")

    async def _identity(self, ready: Ready, answer_s: float) -> Lack:
        model, url = ready.identity.get("served_model"), ready.identity.get("url")
        if not model or not url:
            return Lack()
        _, data, lack = await self._ask("GET", url, None, answer_s)
        if lack:
            return lack
        listed = data.get("data") if isinstance(data, dict) else None
        names = [str(each.get("id")) for each in listed or () if isinstance(each, dict)]
        return Lack() if model in names else Lack(text=f"{url} serves {', '.join(names) or 'no model'}, not {model}")

    async def _ask(self, method: str, url: str, body: Any, timeout_s: float) -> tuple[int, Any, Lack]:
        import httpx

        try:
            answer = await asyncio.wait_for(self._client.request(method, url, json=body, timeout=timeout_s), timeout_s)
        except (asyncio.TimeoutError, httpx.TimeoutException):
            return 0, None, Lack(text=f"{url} does not answer within {timeout_s:g} s")
        except httpx.ConnectError:
            host, port = place(url)
            return 0, None, Lack(text=f"nothing listens on {host} port {port}")
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            return 0, None, Lack(text=f"{url}: {error or type(error).__name__}")
        if answer.status_code != 200:
            detail = " ".join(answer.text[:200].split())
            text = f"{url} answers {answer.status_code}{f' ({detail})' if detail else ''}"
            return answer.status_code, None, Lack(text=text, status=answer.status_code)
        try:
            return answer.status_code, answer.json(), Lack()
        except ValueError:  # /health often has no body
            return answer.status_code, None, Lack()


async def until_ready(prober: Prober, running: Running, ready: Ready, errors_s: float) -> None:
    """Wait until ``running`` has proved ``ready`` by a socket of its own.

    ``errors_s``: seconds for which a generation may be refused before that is final.
    Raises GateTimeout at the probe's deadline, which counts from the process's start, CanaryError where generations are
    refused, and PreflightError where another process holds the port.
    """
    if ready.kind == "output":
        await until_printed(running, ready)
        return
    deadline = running.started + ready.timeout_s
    refused_since: float | None = None
    pause = _FIRST_S
    while True:
        most = _CLOSED_S
        lack = Lack(text=await closed(ready.target))
        if not lack:
            owner_problem(running, [place(ready.target)])
            lack = await prober.lacking(ready)
            most = _MOST_S
        running.lack = str(lack)
        if not lack:
            return
        now = time.monotonic()
        if ready.kind == "generation" and lack.refused:
            refused_since = refused_since or now
        elif not lack.status:  # a router that has seen refusals enough says 503; no answer may mean that it computes
            refused_since = None
        if refused_since is not None and now - refused_since > errors_s:
            raise CanaryError(
                f"no generation came through {running.name} in {now - refused_since:.0f} s: {lack}",
                remedy=f"its log, {running.log}, says what it made of the request",
            )
        if now >= deadline:
            raise GateTimeout(
                f"{running.name} is not ready after {ready.timeout_s:g} s: {lack}", remedy=f"its log is {running.log}"
            )
        pause = min(pause * 1.3, most)
        await asyncio.sleep(min(pause, deadline - now))


def owner_problem(running: Running, places: Iterable[tuple[str, int]]) -> None:
    """Refuse a listener that is not of ``running``'s own processes: somebody else's answer proves nothing.

    Raises PreflightError naming port and holder.
    """
    for host, port in places:
        found = listeners(host, port)
        others = sockets.foreign(found, [stat.pid for stat in running.family()]) if found else []
        if others:
            # Where our process ended between the two looks, its sockets are gone by now, and its exit tells more.
            still = {each.inode for each in listeners(host, port)}
            others = [each for each in others if each.inode in still]
        if others:
            raise PreflightError(
                f"port {port} of {running.name} is held on {others[0].address} by {sockets.holder(others[0])}, not by"
                f" {running.name}",
                remedy="end that process, or plan another port",
            )


def listeners(host: str, port: int) -> list[sockets.ListeningSocket]:
    """The sockets of this node that a connection to ``host`` and ``port`` may reach."""
    own = sockets.numeric(host)
    return [each for each in sockets.listening([port]) if each.takes(own)]


async def until_listening(running: Running, address: str, ports: Iterable[int], timeout_s: float) -> None:
    """Wait until sockets of ``running`` listen on all of ``ports``; GateTimeout ``timeout_s`` after its start."""
    wanted = set(ports)
    pause = _FIRST_S
    while True:
        family = [stat.pid for stat in running.family()]
        held = {
            each.port
            for each in sockets.listening(wanted)
            if each.takes(sockets.numeric(address)) and not sockets.foreign([each], family)
        }
        if held == wanted:
            return
        if time.monotonic() > running.started + timeout_s:
            missing = ", ".join(str(port) for port in sorted(wanted - held))
            raise GateTimeout(
                f"{running.name} does not listen on port {missing} after {timeout_s:g} s",
                remedy=f"its log is {running.log}",
            )
        pause = min(pause * 1.3, _MOST_S / 2)
        await asyncio.sleep(pause)
