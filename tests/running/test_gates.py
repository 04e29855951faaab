"""How far processes have come, what a rank must hear of, and orders that cannot be followed."""

from __future__ import annotations

import asyncio

import attrs
import pytest

from disagg_run.errors import PlanError, UsageError
from disagg_run.running.gates import Board, join_ports, watchers
from disagg_run.running.share import share_of
from tests.running.plans import HTTP, JOIN, Launch, addresses, edges, plan, server


def test_a_wait_ends_when_all_it_waits_for_has_come_and_a_later_stage_includes_the_earlier() -> None:
    async def test() -> None:
        board = Board(["a", "b"])
        waiting = asyncio.create_task(board.wait([("a", "started"), ("b", "ready")]))
        assert board.reach("a", "ready")
        assert not board.reach("a", "started"), "it was further already"
        await asyncio.sleep(0)
        board.reach("b", "listening")
        for _ in range(3):
            await asyncio.sleep(0)
        assert not waiting.done()
        board.reach("b", "ready")
        await asyncio.wait_for(waiting, 1)
        assert board.reached("a", "listening")

    asyncio.run(test())


def test_a_state_of_an_unknown_process_is_ignored() -> None:
    assert Board(["a"]).reach("b", "ready") is False


def test_only_ranks_that_wait_hear_of_a_process() -> None:
    asked = Launch(decodes=2, fields={"decode-1": {"after": edges("decode-0", until="started")}})
    assert watchers(asked.plan()) == {"decode-0": {0, 2}, "decode-1": {0}}


def test_the_join_port_is_one_that_opens_before_the_process_is_ready() -> None:
    address = addresses(1)[0]
    assert join_ports(server("d", address, ports={"http": HTTP, "join": JOIN})) == {"join": JOIN}
    assert join_ports(server("d", address)) == {"http": HTTP}


def test_a_rank_keeps_only_its_own_part_of_the_plan() -> None:
    whole = Launch(decodes=2).plan()
    first, last = share_of(whole, 0), share_of(whole, 2)
    assert set(first.roster) == {"prefill-0", "router", "decode-0", "decode-1"}
    assert set(first.remote) == {"decode-0", "decode-1"}
    assert first.entrance is not None
    assert first.entrance.base == f"http://{whole.ranks[0].node.address}:18000"
    assert [process.name for process in last.processes()] == ["decode-1"]
    assert (last.roster, last.remote, last.digest) == ({}, {}, whole.digest)


@pytest.mark.parametrize(
    ("after", "reason"),
    [
        ({"decode-0": edges("prefill-0"), "prefill-0": edges("decode-0")}, "circle: decode-0, prefill-0"),
        ({"decode-0": edges("prefil-0")}, "decode-0 waits for 'prefil-0', which is no process"),
    ],
)
def test_an_order_that_cannot_be_followed_is_refused_before_anything_starts(
    after: dict[str, object], reason: str
) -> None:
    asked = Launch(fields={name: {"after": value} for name, value in after.items()})
    whole = asked.plan()
    with pytest.raises(PlanError, match=reason):
        share_of(whole, 1)


def test_a_rank_that_the_plan_does_not_have_is_refused() -> None:
    with pytest.raises(UsageError, match="no rank 2: it has ranks 0 to 1"):
        share_of(Launch().plan(), 2)


def test_an_ipv6_node_is_bracketed_in_the_entrance() -> None:
    asked = Launch().plan()
    rank = asked.ranks[0]
    six = attrs.evolve(rank, node=attrs.evolve(rank.node, address="::1"))
    share = share_of(attrs.evolve(asked, ranks=[six, *asked.ranks[1:]]), 0)
    assert share.entrance is not None
    assert share.entrance.base == "http://[::1]:18000"


def test_a_plan_of_one_rank_has_no_one_to_tell() -> None:
    address = addresses(1)[0]
    share = share_of(plan([(address, [server("prefill-0", address)])]), 0)
    assert share.watchers == {}
    assert share.entrance is None
