"""The smoke test: streamed completions through the router, and what they took."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from disagg_run.errors import WorkloadError
from disagg_run.running.probes import generation_body
from disagg_run.running.serving import Entrance
from disagg_run.spec.model import as_tuple

if TYPE_CHECKING:
    import httpx

#: Requests under way at one time, and tokens asked for by each.
CONCURRENCY = 8
TOKENS = 64


@attrs.frozen(kw_only=True)
class Answer:
    """One streamed completion."""

    #: Seconds from sending to the first token.
    first_s: float
    #: Seconds from the first token to the last.
    rest_s: float
    #: Tokens that came, by the server's own count where it gives one.
    tokens: int
    #: Why it is no good answer; "" = it is one.
    problem: str = ""


@attrs.frozen(kw_only=True)
class SmokeResult:
    """What the smoke test measured."""

    answers: tuple[Answer, ...] = attrs.field(converter=as_tuple)
    #: Seconds from the first request to the last answer.
    duration_s: float

    @property
    def failed(self) -> list[str]:
        """What was wrong with the requests that failed."""
        return [answer.problem for answer in self.answers if answer.problem]

    def figures(self) -> dict[str, dict[str, float]]:
        """Milliseconds by figure and percentile, over the good answers."""
        good = [answer for answer in self.answers if not answer.problem]
        series = {
            "time to first token": [answer.first_s for answer in good],
            "time per output token": [answer.rest_s / (answer.tokens - 1) for answer in good if answer.tokens > 1],
            "whole request": [answer.first_s + answer.rest_s for answer in good],
        }
        return {
            name: {f"p{percent}": 1000 * percentile(values, percent) for percent in (50, 90, 99)}
            for name, values in series.items()
            if values
        }

    def throughput(self) -> tuple[float, float]:
        """Output tokens and requests per second."""
        good = [answer for answer in self.answers if not answer.problem]
        return sum(answer.tokens for answer in good) / self.duration_s, len(good) / self.duration_s

    def to_data(self) -> dict[str, Any]:
        """Plain data for JSON."""
        tokens_s, requests_s = self.throughput()
        return {
            "requests": len(self.answers),
            "failed": len(self.failed),
            "duration_s": self.duration_s,
            "output_tokens_per_s": tokens_s,
            "requests_per_s": requests_s,
            "ms": self.figures(),
        }

    def table(self) -> str:
        """The figures for people."""
        lines = [f"{'milliseconds':<24}{'p50':>10}{'p90':>10}{'p99':>10}"]
        for name, row in self.figures().items():
            lines.append(f"{name:<24}{row['p50']:>10.1f}{row['p90']:>10.1f}{row['p99']:>10.1f}")
        tokens_s, requests_s = self.throughput()
        count = len(self.answers)
        lines.append(
            f"{count - len(self.failed)} of {count} requests good, {at_once(count)} at a time, {self.duration_s:.2f} s:"
            f" {tokens_s:.1f} output tokens/s, {requests_s:.2f} requests/s"
        )
        return "\n".join(lines)


def at_once(count: int) -> int:
    """How many of ``count`` requests are under way at one time."""
    return min(CONCURRENCY, count)


def percentile(values: Sequence[float], percent: float) -> float:
    """The value that ``percent`` of ``values`` do not exceed, between the two nearest ones where it falls there."""
    ordered = sorted(values)
    position = (len(ordered) - 1) * percent / 100
    low = int(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


async def smoke(client: httpx.AsyncClient, where: Entrance, count: int, timeout_s: float) -> SmokeResult:
    """Send ``count`` streamed completions, 8 at a time at most; each may take ``timeout_s``."""
    answers: dict[int, Answer] = {}
    indexes = iter(range(count))

    async def ask_on() -> None:
        # All workers take from one iterator, so that no more requests exist than are under way, however many are asked.
        for index in indexes:
            prompt = f"Request {index + 1} of {count}: name {index + 2} rivers."
            answers[index] = await _ask(client, where, prompt, timeout_s)

    start = time.monotonic()
    await asyncio.gather(*(ask_on() for _ in range(at_once(count))))
    return SmokeResult(answers=[answers[index] for index in range(count)], duration_s=time.monotonic() - start)


def check(result: SmokeResult) -> None:
    """Refuse a result with a failed request; WorkloadError says what was wrong with the first."""
    failed = result.failed
    if failed:
        raise WorkloadError(f"{len(failed)} of {len(result.answers)} smoke requests failed; the first: {failed[0]}")


async def _ask(client: httpx.AsyncClient, where: Entrance, prompt: str, timeout_s: float) -> Answer:
    import httpx

    body = generation_body(where.completions, where.model, tokens=TOKENS, stream=True, prompt=prompt)
    body["stream_options"] = {"include_usage": True}
    stream = _Stream()
    try:
        await asyncio.wait_for(_read(client, where.completions, body, timeout_s, stream), timeout_s)
    except (asyncio.TimeoutError, httpx.TimeoutException):
        return stream.answer(f"no whole answer within {timeout_s:g} s")
    except httpx.HTTPError as error:
        return stream.answer(f"{type(error).__name__}: {error}")
    return stream.answer("")


async def _read(client: httpx.AsyncClient, url: str, body: dict[str, Any], timeout_s: float, stream: _Stream) -> None:
    async with client.stream("POST", url, json=body, timeout=timeout_s) as response:
        if response.status_code != 200:
            await response.aread()
            stream.problem = f"{url} answers {response.status_code} ({' '.join(response.text[:200].split())})"
            return
        async for line in response.aiter_lines():
            stream.line(line)


class _Stream:
    """What came of one answer so far."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._start = clock()
        self._first: float | None = None
        self._last = self._start
        self._chunks = 0
        self._usage = 0
        self._whole = False
        self.problem = ""

    def line(self, line: str) -> None:
        """Take one line of the event stream."""
        if not line.startswith("data:"):
            return
        data = line[5:].strip()
        if data == "[DONE]":
            self._whole = True
            return
        try:
            chunk = json.loads(data)
        except ValueError:
            self.problem = self.problem or f"a chunk is no JSON: {data[:100]!r}"
            return
        if isinstance(chunk, dict) and chunk.get("error"):
            self.problem = self.problem or f"the stream holds an error: {str(chunk['error'])[:200]}"
            return
        self._usage = (chunk.get("usage") or {}).get("completion_tokens") or self._usage
        if any(choice.get("text") for choice in chunk.get("choices") or ()):
            now = self._clock()
            self._first = now if self._first is None else self._first
            self._last = now
            self._chunks += 1

    def answer(self, problem: str) -> Answer:
        """The answer, once the stream has ended or failed."""
        problem = problem or self.problem
        if not problem and self._first is None:
            problem = "no token came"
        if not problem and not self._whole:
            problem = "the stream ended before [DONE]"
        first = self._last if self._first is None else self._first
        return Answer(
            first_s=first - self._start,
            rest_s=self._last - first,
            tokens=self._usage or self._chunks,
            problem=problem,
        )
