"""The star: who may join, what is told to whom, and what the end of a connection or a silence means."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from disagg_run.errors import GateTimeout, RunError
from disagg_run.running.gates import Board
from disagg_run.running.link import Spoke
from disagg_run.running.messages import LIMIT, encode, receive
from disagg_run.running.outcome import Failure
from disagg_run.running.star import Hub
from disagg_run.running.star_socket import listen
from disagg_run.running.timing import Timing
from disagg_run.running.verdict import Verdict

NAMES = ("prefill-0", "decode-0", "decode-1")
FAST = Timing(heartbeat_s=0.05, stall_s=0.4, join_s=2.0)


class Centre:
    """Rank 0's end with all that belongs to it."""

    def __init__(self, ranks: int = 3, timing: Timing = FAST) -> None:
        self.notes: list[tuple[str, dict[str, Any]]] = []
        self.board = Board(NAMES)
        self.verdict = Verdict()
        self.sock: socket.socket = listen("127.0.0.1", 0)
        self.address: tuple[str, int] = self.sock.getsockname()
        self.hub = Hub(
            ranks=ranks,
            digest="sha256:1",
            token="secret",
            board=self.board,
            verdict=self.verdict,
            watchers={"prefill-0": {2}, "decode-0": {0, 2}},
            timing=timing,
            note=lambda event, **data: self.notes.append((event, data)),
        )
        self.verdict.on_failure = self.hub.stop

    def spoke(self, rank: int, *, token: str = "secret", digest: str = "sha256:1", timing: Timing = FAST) -> Outer:
        return Outer(rank, token, digest, timing)


class Outer:
    """Another rank's end."""

    def __init__(self, rank: int, token: str, digest: str, timing: Timing) -> None:
        self.board = Board(NAMES)
        self.verdict = Verdict()
        self.link = Spoke(rank=rank, digest=digest, token=token, board=self.board, verdict=self.verdict, timing=timing)
        self.verdict.on_failure = self.link.fail


@asynccontextmanager
async def centre(ranks: int = 3, timing: Timing = FAST) -> AsyncIterator[Centre]:
    made = Centre(ranks, timing)
    await made.hub.open(made.sock)
    try:
        yield made
    finally:
        await made.hub.close(made.verdict.culprit)


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(test(), 20)

    asyncio.run(bounded())


async def soon(condition: Callable[[], object], what: str) -> None:
    deadline = asyncio.get_running_loop().time() + 5
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, what
        await asyncio.sleep(0.005)


def test_a_rank_hears_only_of_what_it_waits_for_also_of_what_was_before_it_joined() -> None:
    async def test() -> None:
        async with centre() as hub:
            hub.board.reach("prefill-0", "started")
            one, two = hub.spoke(1), hub.spoke(2)
            await one.link.open(*hub.address)
            await two.link.open(*hub.address)
            await hub.hub.joined()
            assert two.board.stage("prefill-0") == "started"
            one.link.announce({"process": "decode-0", "stage": "ready", "pid": 7})
            await soon(lambda: two.board.reached("decode-0", "ready"), "decode-0 at rank 2")
            assert one.board.stage("prefill-0") == "planned"
            await one.link.close([], wait_s=0)
            await two.link.close([], wait_s=0)

    run(test)


def test_a_failure_anywhere_is_known_everywhere_and_the_first_is_the_culprit() -> None:
    async def test() -> None:
        async with centre() as hub:
            one, two = hub.spoke(1), hub.spoke(2)
            await one.link.open(*hub.address)
            await two.link.open(*hub.address)
            one.verdict.fail(Failure(rank=1, process="decode-0", message="died", exit_code=11))
            await soon(lambda: hub.verdict.ended and two.verdict.ended, "the failure")
            two.verdict.fail(Failure(rank=2, process="decode-1", message="died too", exit_code=11))
            for each in (hub, one, two):
                assert each.verdict.culprit is not None
                assert (each.verdict.culprit.rank, each.verdict.culprit.process) == (1, "decode-0")
                assert each.verdict.exit_code == 11
            assert [each.process for each in two.verdict.consequences] == ["decode-1"]
            await one.link.close([], wait_s=0)
            await two.link.close([], wait_s=0)

    run(test)


@pytest.mark.parametrize(
    ("token", "digest", "reason"), [("wrong", "sha256:1", "token"), ("secret", "sha256:2", "plan")]
)
def test_a_wrong_secret_or_another_plan_is_refused(token: str, digest: str, reason: str) -> None:
    async def test() -> None:
        async with centre() as hub:
            stranger = hub.spoke(1, token=token, digest=digest)
            with pytest.raises(RunError, match=rf"refuses rank 1: .*{reason}"):
                await stranger.link.open(*hub.address)
            assert hub.hub.missing() == [1, 2]
            assert hub.notes[0][0] == "star.refused"
            # Another plan under the run's own secret can never become right; a stranger's knock changes nothing.
            assert hub.verdict.ended is (reason == "plan")

    run(test)


def test_a_second_agent_of_one_rank_and_a_rank_that_is_not_planned_are_refused() -> None:
    async def test() -> None:
        async with centre() as hub:
            first = hub.spoke(1)
            await first.link.open(*hub.address)
            for rank, reason in ((1, "joined already"), (7, "no rank 7"), (0, "no rank 0")):
                with pytest.raises(RunError, match=reason):
                    await hub.spoke(rank).link.open(*hub.address)
            assert not hub.verdict.ended
            await first.link.close([], wait_s=0)

    run(test)


@pytest.mark.parametrize(
    "line", [b"GET / HTTP/1.1\r\n\r\n", b"[1]\n", b"\xff\n", b"x" * (2 * LIMIT), b'{"token": 5}\n']
)
def test_a_stranger_who_speaks_otherwise_is_hung_up_on_and_harms_nothing(line: bytes) -> None:
    async def test() -> None:
        async with centre(2) as hub:
            reader, writer = await asyncio.open_connection(*hub.address)
            writer.write(line)
            with contextlib.suppress(ConnectionResetError):  # the rest of a long line was not read
                assert await reader.read() == b""
            writer.close()
            member = hub.spoke(1)
            await member.link.open(*hub.address)
            await hub.hub.joined()
            assert not hub.verdict.ended
            await member.link.close([], wait_s=0)

    run(test)


def test_a_token_of_bytes_that_are_no_text_is_a_wrong_one() -> None:
    async def test() -> None:
        async with centre(2) as hub:
            reader, writer = await asyncio.open_connection(*hub.address)
            writer.write(b'{"type": "hello", "token": "\\ud800"}\n')
            assert b"its token is not this run's" in await reader.read()
            writer.close()
            assert not hub.verdict.ended

    run(test)


def test_the_end_of_a_connection_is_that_agents_death() -> None:
    async def test() -> None:
        async with centre() as hub:
            one, two = hub.spoke(1), hub.spoke(2)
            await one.link.open(*hub.address)
            await two.link.open(*hub.address)
            assert one.link._writer is not None
            one.link._writer.transport.abort()
            await soon(lambda: two.verdict.ended, "the death of rank 1's agent")
            assert two.verdict.culprit is not None
            assert two.verdict.culprit.message == "the agent of rank 1 is gone: its connection ended"
            await two.link.close([], wait_s=0)

    run(test)


def test_a_silent_agent_is_dead_after_the_stall_time_on_either_end() -> None:
    async def test() -> None:
        slow = Timing(heartbeat_s=60, stall_s=0.4)
        async with centre(2) as hub:
            mute = hub.spoke(1, timing=slow)
            await mute.link.open(*hub.address)
            await soon(lambda: hub.verdict.ended, "the silence")
            assert hub.verdict.culprit is not None
            assert hub.verdict.culprit.message == "the agent of rank 1 is gone: no sign of life for 0.4 s"
            await mute.link.close([], wait_s=0)
        async with centre(2, slow) as hub:
            member = hub.spoke(1)
            await member.link.open(*hub.address)
            await soon(lambda: member.verdict.ended, "rank 0's silence")
            assert member.verdict.culprit is not None
            assert member.verdict.culprit.message == "the agent of rank 0 is gone: no sign of life for 0.4 s"
            await member.link.close([], wait_s=0)

    run(test)


def test_ranks_that_do_not_join_are_named_after_the_join_time() -> None:
    async def test() -> None:
        async with centre(4, Timing(heartbeat_s=0.05, stall_s=5, join_s=0.2)) as hub:
            member = hub.spoke(2)
            await member.link.open(*hub.address)
            with pytest.raises(GateTimeout, match=r"agents of rank 1, 3 have not joined within 0\.2 s"):
                await hub.hub.joined()
            await member.link.close([], wait_s=0)

    run(test)


def test_rank_zero_that_cannot_be_reached_is_named_with_its_address() -> None:
    async def test() -> None:
        sock = listen("127.0.0.1", 0)
        address = sock.getsockname()
        sock.close()
        outer = Outer(1, "secret", "sha256:1", Timing(join_s=0.2))
        with pytest.raises(GateTimeout, match=rf"127\.0\.0\.1 port {address[1]} within 0\.2 s: .*--star"):
            await outer.link.open(*address)

    run(test)


def test_rank_zeros_last_word_counts_and_what_others_left_is_reported() -> None:
    async def test() -> None:
        async with centre(2) as hub:
            member = hub.spoke(1)
            await member.link.open(*hub.address)
            hub.verdict.finish()
            hub.hub.stop(None)
            await soon(lambda: member.verdict.finished, "the end")
            closing = asyncio.create_task(member.link.close(["pid 7"], wait_s=5))
            assert await hub.hub.settled(5) == []
            assert hub.hub.left == ["rank 1: pid 7"]
            hub.verdict.spoil(Failure(rank=0, process="run", message="left", exit_code=10))
            await hub.hub.close(hub.verdict.culprit)
            await closing
            assert member.verdict.exit_code == 10

    run(test)


def test_an_agent_that_dies_while_the_run_ends_is_not_forgotten() -> None:
    async def test() -> None:
        async with centre(2) as hub:
            member = hub.spoke(1)
            await member.link.open(*hub.address)
            hub.verdict.finish()
            assert member.link._writer is not None
            member.link._writer.transport.abort()
            await soon(lambda: hub.hub.lost, "the loss")
            assert hub.hub.lost[0].rank == 1

    run(test)


def test_a_message_comes_back_as_it_was_and_half_a_line_is_none() -> None:
    async def test() -> None:
        reader = asyncio.StreamReader()
        reader.feed_data(encode({"type": "state", "text": "ü\n\ud800"}) + b'{"half": ')
        reader.feed_eof()
        assert await receive(reader) == {"type": "state", "text": "ü\n\ud800"}
        assert await receive(reader) is None

    run(test)
