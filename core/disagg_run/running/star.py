"""Rank 0's end of the star: every other agent holds one connection, and its end is that agent's death."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import socket
from collections.abc import Callable, Mapping
from typing import Any

import attrs

from disagg_run.errors import GateTimeout
from disagg_run.running.gates import Board, Stage
from disagg_run.running.messages import LIMIT, Message, encode, receive
from disagg_run.running.outcome import AGENT, RUN, Failure
from disagg_run.running.timing import Timing
from disagg_run.running.verdict import Verdict

#: For a new connection to say who it is, in seconds.
_HELLO_S = 5.0
#: For closed connections to be seen to be closed, in seconds.
_CLOSE_S = 0.5
#: Bytes that may wait for an agent that does not read; it is stalled then.
_BACKLOG = 1 << 20


@attrs.define(kw_only=True, eq=False)
class Member:
    """Another rank's agent."""

    rank: int
    writer: asyncio.StreamWriter
    #: Loop time of its last sign of life.
    seen: float
    #: Whether it said that it has torn down.
    done: bool = False


class Hub:
    """Rank 0's link: hears of every process, tells each rank what it waits for, and ends the run everywhere."""

    def __init__(
        self,
        *,
        ranks: int,
        digest: str,
        token: str,
        board: Board,
        verdict: Verdict,
        watchers: Mapping[str, set[int]],
        timing: Timing,
        note: Callable[..., None],
    ) -> None:
        self._expected = set(range(1, ranks))
        self._digest = digest
        self._token = token.encode()
        self._board = board
        self._verdict = verdict
        self._watchers = watchers
        self._timing = timing
        self._note = note
        self._members: dict[int, Member] = {}
        self._server: asyncio.Server | None = None
        self._beating: asyncio.Task[None] | None = None
        self._serving: set[asyncio.Task[Any]] = set()
        self._stopped: Message | None = None
        self._changed = asyncio.Event()
        #: The last agent that was refused and why, in words; "" = none.
        self.refused = ""
        #: What other ranks could not end, in words.
        self.left: list[str] = []
        #: Agents that were lost while the run ended.
        self.lost: list[Failure] = []
        #: Called with each agent that joins: its rank and what it says of itself.
        self.on_join: Callable[[int, Mapping[str, Any]], None] = lambda rank, agent: None
        #: Called with each state of a process of another rank.
        self.on_state: Callable[[Mapping[str, Any]], None] = lambda state: None

    async def open(self, sock: socket.socket) -> None:
        """Listen on ``sock``."""
        self._server = await asyncio.start_server(self._serve, sock=sock, limit=LIMIT)
        self._beating = asyncio.create_task(self._beat())

    async def joined(self) -> None:
        """Wait until every rank's agent has joined; GateTimeout names those that did not."""
        try:
            await asyncio.wait_for(self._until(lambda: self._expected <= set(self._members)), self._timing.join_s)
        except asyncio.TimeoutError:
            missing = ", ".join(str(rank) for rank in sorted(self._expected - set(self._members)))
            raise GateTimeout(
                f"the agents of rank {missing} have not joined within {self._timing.join_s:g} s"
                + (f"; {self.refused}" if self.refused else ""),
                remedy="see whether they were started and reach rank 0's address",
            ) from None

    def missing(self) -> list[int]:
        """Ranks that have not joined."""
        return sorted(self._expected - set(self._members))

    def announce(self, state: Mapping[str, Any]) -> None:
        """Tell those ranks that wait for it how far a process has come."""
        for rank in self._watchers.get(state["process"], ()) if "stage" in state else ():
            member = self._members.get(rank)
            if member is not None:
                self._send(member, {"type": "state", **state})

    def stop(self, culprit: Failure | None) -> None:
        """Tell all ranks that the run is over and why; the first word counts."""
        if self._stopped is None:
            self._stopped = {"type": "stop", "culprit": culprit.to_data() if culprit else None}
            for member in self._members.values():
                self._send(member, self._stopped)

    async def settled(self, timeout_s: float) -> list[int]:
        """Wait until every rank has torn down or is gone; returns the ranks of which that is not known."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._until(lambda: not self._busy()), timeout_s)
        return self._busy()

    async def close(self, culprit: Failure | None) -> None:
        """Tell every rank the last word on how the run ended, and close all connections."""
        for member in self._members.values():
            self._send(member, {"type": "bye", "culprit": culprit.to_data() if culprit else None})
        if self._beating is not None:
            self._beating.cancel()
        if self._server is not None:
            self._server.close()
        for member in self._members.values():
            member.writer.close()
        # A closed connection ends its task by itself.
        if self._serving:
            await asyncio.wait(self._serving, timeout=_CLOSE_S)

    def _busy(self) -> list[int]:
        return sorted(rank for rank, member in self._members.items() if not member.done)

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._changed.clear()
            await self._changed.wait()

    # --- one member ----------------------------------------------------------------------------------------------

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is not None:
            self._serving.add(task)
            task.add_done_callback(self._serving.discard)
        member = await self._welcome(reader, writer)
        if member is None:
            writer.close()
            return
        while (message := await receive(reader)) is not None:
            member.seen = asyncio.get_running_loop().time()
            self._handle(member, message)
        writer.close()
        if not member.done:
            member.done = True
            self._lost(member, "its connection ended")
        self._changed.set()

    async def _welcome(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Member | None:
        name = writer.get_extra_info("peername")  # None where it has hung up already
        peer = str(name[0]) if name else "an unknown address"
        try:
            hello = await asyncio.wait_for(receive(reader), _HELLO_S)
        except asyncio.TimeoutError:
            hello = None
        token = hello.get("token") if hello else None
        if hello is None or not isinstance(token, str):
            self._note("star.refused", peer=peer, reason="it is no agent of a run")
            return None
        if not hmac.compare_digest(token.encode("utf-8", "surrogatepass"), self._token):
            self._refuse(writer, peer, "its token is not this run's")
            return None
        if hello.get("type") == "lost" and hello.get("digest") == self._digest:
            if self._stopped is None:  # else its end was seen already
                self._verdict.fail(Failure.from_data(hello["failure"]))
            return None
        rank = hello.get("rank")
        reason = self._objection(rank, hello.get("digest"))
        if reason and hello.get("digest") != self._digest:
            # It holds the run's secret: a rank that was given another plan, and will never join with this one.
            self._verdict.fail(Failure(rank=0, process=RUN, message=reason))
        if reason:
            self._refuse(writer, peer, reason)
            return None
        member = Member(rank=int(str(rank)), writer=writer, seen=asyncio.get_running_loop().time())
        self._members[member.rank] = member
        self._send(member, {"type": "welcome", "states": self._states(member.rank)})
        if self._stopped is not None:
            self._send(member, self._stopped)
        self._note("star.joined", member=member.rank, peer=peer)
        self.on_join(member.rank, hello.get("agent") or {})
        self._changed.set()
        return member

    def _refuse(self, writer: asyncio.StreamWriter, peer: str, reason: str) -> None:
        self.refused = f"one at {peer} was refused: {reason}"
        self._note("star.refused", peer=peer, reason=reason)
        writer.write(encode({"type": "refused", "reason": reason}))

    def _objection(self, rank: object, digest: object) -> str:
        if digest != self._digest:
            return f"rank {rank} has the plan {digest}, rank 0 has {self._digest}"
        if rank not in self._expected:
            return f"the plan has no rank {rank}"
        if rank in self._members:
            return f"rank {rank} has joined already"
        return ""

    def _states(self, rank: int) -> list[dict[str, Any]]:
        found = []
        for name, ranks in self._watchers.items():
            stage: Stage = self._board.stage(name)
            if rank in ranks and stage != "planned":
                found.append({"process": name, "stage": stage})
        return found

    def _handle(self, member: Member, message: Message) -> None:
        kind = message.get("type")
        if kind == "state":
            state = {key: value for key, value in message.items() if key != "type"}
            self.on_state({**state, "rank": member.rank})
            self.announce(state)
        elif kind == "failure":
            self._verdict.fail(Failure.from_data(message["failure"]))
        elif kind == "done":
            member.done = True
            self.left += [f"rank {member.rank}: {text}" for text in message.get("left", ())]
            self._changed.set()

    def _send(self, member: Member, message: Message) -> None:
        if not member.writer.is_closing() and member.writer.transport.get_write_buffer_size() < _BACKLOG:
            member.writer.write(encode(message))

    def _lost(self, member: Member, how: str) -> None:
        text = f"the agent of rank {member.rank} is gone: {how}"
        failure = Failure(rank=member.rank, process=AGENT, message=text)
        if self._verdict.ended:
            self.lost.append(failure)
        else:
            self._verdict.fail(failure)

    async def _beat(self) -> None:
        loop = asyncio.get_running_loop()
        last = loop.time()
        while True:
            await asyncio.sleep(self._timing.heartbeat_s)
            now = loop.time()
            # Had this agent itself been held up, the silence of the others would prove nothing.
            late = now - last > 2 * self._timing.heartbeat_s + 0.5
            last = now
            for member in self._members.values():
                if late:
                    member.seen = now
                self._send(member, {"type": "beat"})
                if not member.done and now - member.seen > self._timing.stall_s:
                    member.done = True
                    self._lost(member, f"no sign of life for {self._timing.stall_s:g} s")
                    member.writer.transport.abort()
