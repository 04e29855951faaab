"""A guardian's word to rank 0 that its agent was lost before it could join."""

from __future__ import annotations

import asyncio

import pytest

from disagg_run.running.obituary import Star, tell_first
from disagg_run.running.outcome import Failure
from tests.running.test_star import centre, run, soon

LOST = Failure(rank=1, process="agent", message="the agent of rank 1 was killed by SIGKILL", signal="SIGKILL")


def test_rank_0_heeds_it_and_tells_the_others() -> None:
    async def test() -> None:
        async with centre() as hub:
            two = hub.spoke(2)
            await two.link.open(*hub.address)
            star = Star(address=hub.address, digest="sha256:1", token="secret")
            await asyncio.to_thread(tell_first, star, LOST)
            await soon(lambda: two.verdict.ended, "the loss")
            assert hub.verdict.culprit == two.verdict.culprit == LOST
            assert hub.hub.missing() == [1]
            await two.link.close([], wait_s=0)

    run(test)


@pytest.mark.parametrize("token", ["another", "sécret"])
def test_a_strangers_word_changes_nothing(token: str) -> None:
    async def test() -> None:
        async with centre() as hub:
            await asyncio.to_thread(tell_first, Star(address=hub.address, digest="sha256:1", token=token), LOST)
            await soon(lambda: hub.notes, "the refusal")
            assert hub.notes[0][1]["reason"] == "its token is not this run's"
            assert not hub.verdict.ended

    run(test)


def test_where_the_run_is_ending_it_says_nothing_new() -> None:
    async def test() -> None:
        async with centre() as hub:
            first = Failure(rank=1, process="agent", message="the agent of rank 1 is gone: its connection ended")
            hub.verdict.fail(first)
            star = Star(address=hub.address, digest="sha256:1", token="secret")
            await asyncio.to_thread(tell_first, star, LOST)
            two = hub.spoke(2)  # heard after it
            await two.link.open(*hub.address)
            await soon(lambda: two.verdict.ended, "the end")
            assert hub.verdict.culprit == first
            assert hub.verdict.consequences == []
            await two.link.close([], wait_s=0)

    run(test)


def test_nobody_to_hear_it_is_no_error() -> None:
    tell_first(Star(address=("127.0.0.1", 1), digest="sha256:1", token="secret"), LOST)


def test_the_token_is_never_shown() -> None:
    assert "secret" not in repr(Star(address=("127.0.0.1", 1), digest="sha256:1", token="secret"))
