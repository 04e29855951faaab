"""Another rank's end of the star: one connection to rank 0, whose end is rank 0's death."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping, Sequence
from typing import Any

from disagg_run.errors import GateTimeout, RunError
from disagg_run.running.agent_mark import agent_mark
from disagg_run.running.gates import Board
from disagg_run.running.messages import LIMIT, Message, encode, receive
from disagg_run.running.outcome import AGENT, Failure
from disagg_run.running.timing import Timing
from disagg_run.running.verdict import Verdict

_AGAIN_S = 0.1


class FirstGone(RunError):
    """Rank 0's agent has ended before it answered."""


class Spoke:
    """A rank's link to rank 0."""

    def __init__(self, *, rank: int, digest: str, token: str, board: Board, verdict: Verdict, timing: Timing) -> None:
        self._rank = rank
        self._digest = digest
        self._token = token
        self._board = board
        self._verdict = verdict
        self._timing = timing
        self._writer: asyncio.StreamWriter | None = None
        self._over = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._seen = 0.0

    async def open(self, host: str, port: int, *, listens: bool = False) -> None:
        """Join rank 0, which may not be up yet.

        ``listens``: whether its socket was opened before this agent was started: then a refused connection is its end.
        Raises GateTimeout where it cannot be reached, RunError where it refuses this rank, FirstGone where it is gone.
        """
        deadline = time.monotonic() + self._timing.join_s
        while True:
            try:
                reader, writer = await asyncio.open_connection(host, port, limit=LIMIT)
                break
            except OSError as error:
                if listens and isinstance(error, ConnectionRefusedError):
                    raise FirstGone("the agent of rank 0 is gone: its socket is closed") from None
                if time.monotonic() > deadline:
                    raise GateTimeout(
                        f"rank 0's agent cannot be reached at {host} port {port} within {self._timing.join_s:g} s:"
                        f" {error.strerror or error}",
                        remedy="see whether it was started, and whether --star names its address",
                    ) from None
                await asyncio.sleep(_AGAIN_S)
        await self._greet(reader, writer, f"{host} port {port}")

    async def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, where: str) -> None:
        self._writer = writer
        hello = {"type": "hello", "rank": self._rank, "digest": self._digest, "token": self._token}
        self._send({**hello, "agent": agent_mark()})
        welcome = await receive(reader)
        if welcome is None or welcome.get("type") != "welcome":
            await _hang_up(writer)
            self._writer = None
            if welcome is None:
                raise FirstGone(
                    f"the connection to {where} ended before rank 0's agent answered rank {self._rank}",
                    remedy="see whether rank 0 is just ending, and whether --star names its agent",
                )
            raise RunError(
                f"rank 0's agent at {where} refuses rank {self._rank}: {welcome.get('reason')}",
                remedy="each rank needs one agent, all with the same plan and the same token",
            )
        for state in welcome["states"]:
            self._board.reach(state["process"], state["stage"])
        self._seen = asyncio.get_running_loop().time()
        self._tasks = [asyncio.create_task(self._listen(reader)), asyncio.create_task(self._beat())]

    def announce(self, state: Mapping[str, Any]) -> None:
        """Tell rank 0 how far a process has come."""
        self._send({"type": "state", **state})

    def fail(self, failure: Failure) -> None:
        """Tell rank 0 that something failed here."""
        self._send({"type": "failure", "failure": failure.to_data()})

    async def close(self, left: Sequence[str], *, wait_s: float) -> None:
        """Say that this rank has torn down and what is left, and wait for rank 0's last word on how the run ended.

        ``wait_s``: for that word; rank 0 gives it once all ranks have torn down.
        """
        self._send({"type": "done", "left": list(left)})
        if self._tasks:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._over.wait(), wait_s)
        for task in self._tasks:
            task.cancel()
        if self._writer is not None:
            await _hang_up(self._writer)

    def _send(self, message: Message) -> None:
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(encode(message))

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        while (message := await receive(reader)) is not None:
            self._seen = asyncio.get_running_loop().time()
            if message.get("type") == "state":
                self._board.reach(message["process"], message["stage"])
            elif message.get("type") == "stop":
                culprit = message["culprit"]
                self._verdict.overrule(Failure.from_data(culprit) if culprit else None)
            elif message.get("type") == "bye":
                culprit = message["culprit"]
                self._verdict.settle(Failure.from_data(culprit) if culprit else None)
                self._over.set()
        self._lost("its connection ended")

    def _lost(self, how: str) -> None:
        if self._over.is_set():
            return
        self._over.set()
        failure = Failure(rank=0, process=AGENT, message=f"the agent of rank 0 is gone: {how}")
        if self._verdict.ended:
            self._verdict.spoil(failure)
        else:
            self._verdict.fail(failure)

    async def _beat(self) -> None:
        loop = asyncio.get_running_loop()
        last = loop.time()
        while True:
            await asyncio.sleep(self._timing.heartbeat_s)
            now = loop.time()
            if now - last > 2 * self._timing.heartbeat_s + 0.5:  # this agent itself was held up
                self._seen = now
            last = now
            self._send({"type": "beat"})
            if now - self._seen > self._timing.stall_s:
                self._lost(f"no sign of life for {self._timing.stall_s:g} s")


async def _hang_up(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
