"""Ports: public fault reports, and whatever is asked no two listeners share a number."""

from __future__ import annotations

import time

from hypothesis import given
from hypothesis import strategies as st

from disagg_run.errors import PortError
from disagg_run.ports import DEFAULT_EPHEMERAL, PortRequest, allocate
from disagg_run.records import Listener
from tests.port_requests import WIDE_OFFSETS, derived, http, no_overlap, refused, request

# --- public fault reports ---------------------------------------------------------------------------------------------


def test_B01_two_workers_of_a_node_keep_all_their_derived_ports_apart() -> None:
    shape = (http(), Listener(name="bootstrap", default_port=8998), *(derived(offset) for offset in WIDE_OFFSETS))
    found = allocate([request("prefill-0", *shape), request("prefill-1", *shape), request("decode-0", http(), rank=1)])
    assert no_overlap(found)
    assert found.ports["prefill-0"]["http"] == 8000
    assert found.ports["prefill-1"]["http"] == 8300
    assert found.ports["prefill-1"]["http+239"] == 8539
    assert found.ports["prefill-1"]["bootstrap"] == 8999
    fixed = tuple(http(8000 + index, pinned=True) for index in range(2))
    text = refused(request("prefill-0", fixed[0], *shape[2:]), request("prefill-1", fixed[1], *shape[2:]))
    assert "clash on rank 0" in text


def test_B02_a_default_in_the_ephemeral_range_is_warned_of_and_a_move_never_goes_there() -> None:
    shape = (http(39000), derived(236))
    found = allocate([request("prefill-0", *shape), request("prefill-1", *shape)])
    assert found.ports["prefill-0"]["http"] == 39000
    low, high = DEFAULT_EPHEMERAL
    assert not any(low <= port <= high for port in found.ports["prefill-1"].values())
    assert len(found.warnings) == 2
    assert found.warnings[0].startswith(
        "port 39000 (http of prefill-0) lies in the kernel's ephemeral range 32768-60999, so an outgoing connection"
    )
    assert "port 39236 (http+236 of prefill-0)" in found.warnings[1]


def test_B02_the_range_of_each_node_counts() -> None:
    found = allocate(
        [request("prefill-0", http(39000)), request("prefill-1", http(39000), rank=1)],
        ephemeral={0: (40000, 50000), 1: (16000, 65535)},
    )
    assert [warning.split(",")[0] for warning in found.warnings] == [
        "port 39000 (http of prefill-1) lies in the kernel's ephemeral range 16000-65535"
    ]


def test_B02_a_thousand_nodes_give_one_warning_for_each_kind_of_listener() -> None:
    requests = [
        request(f"decode-{rank}", http(), Listener(name="discovery", default_port=36367), rank=rank)
        for rank in range(1024)
    ]
    began = time.process_time()
    found = allocate(requests)
    assert time.process_time() - began < 1.0
    assert len(found.warnings) == 1
    assert "port 36367 (discovery of decode-0 and 1023 more)" in found.warnings[0]


# --- whatever is asked ------------------------------------------------------------------------------------------------


#: Few distinct ports and names, so that they meet.
ports = st.sampled_from([1, 80, 1023, 8000, 8001, 8233, 8998, 32767, 36367, 61005, 65500, 65535])

counts = st.sampled_from([0, 1, 1, 1, 2, 8, 300])

roots = st.builds(
    Listener,
    name=st.sampled_from(["http", "side", "join"]),
    default_port=ports,
    count=counts,
    pinned=st.sampled_from([False, False, False, True]),
    worker_wide=st.booleans(),
)

followers = st.builds(
    Listener,
    name=st.sampled_from(["a", "b", "c"]),
    relative_to=st.sampled_from(["http", "side", "join"]),
    offset=st.sampled_from([-233, 1, 13, 233, 300]),
    count=counts,
    worker_wide=st.booleans(),
)

listeners_of = st.tuples(
    st.lists(roots, min_size=1, max_size=3, unique_by=lambda listener: listener.name),
    st.lists(followers, max_size=2, unique_by=lambda listener: listener.name),
).map(lambda parts: [*parts[0], *parts[1]])


@st.composite
def launches(draw: st.DrawFn) -> list[PortRequest]:
    """A few workers over a few nodes; the head and its followers are on nodes of their own."""
    found = []
    for index in range(draw(st.integers(1, 4))):
        ranks = draw(st.lists(st.integers(0, 3), min_size=1, max_size=3, unique=True))
        shape = draw(listeners_of)
        for part, rank in enumerate(ranks):
            name = f"decode-{index}" + (f".{part}" if part else "")
            found.append(request(name, *(shape if draw(st.booleans()) else draw(listeners_of)), rank=rank))
    return found


busy_ports = st.dictionaries(st.integers(0, 3), st.frozensets(st.sampled_from([8000, 8001, 8300, 61006]), max_size=3))


@given(requests=launches(), busy=busy_ports)
def test_any_listeners_get_ports_that_never_overlap_or_a_clear_error(
    requests: list[PortRequest], busy: dict[int, frozenset[int]]
) -> None:
    try:
        found = allocate(requests, busy=busy)
    except PortError:
        return
    assert no_overlap(found)
    low, high = DEFAULT_EPHEMERAL
    for row in found.table:
        assert 1 <= row.first <= row.last <= 65535
        assert not busy.get(row.rank, frozenset()) & set(range(row.first, row.last + 1))
        if row.moved_from is not None:
            assert row.first >= 1024
            assert row.last < low or row.first > high
    shape = {(one.process, listener.name): listener for one in requests for listener in one.listeners}
    worker_of = {one.process: one.worker for one in requests}
    assert {(row.process, row.listener) for row in found.table} == {key for key, one in shape.items() if one.count}
    wide: dict[tuple[str | None, str], set[int]] = {}
    for row in found.table:
        listener = shape[row.process, row.listener]
        assert row.last - row.first + 1 == listener.count
        base = shape.get((row.process, listener.relative_to))
        if base is not None and base.count:
            assert row.first == found.ports[row.process][base.name] + listener.offset
        elif not listener.relative_to and listener.pinned:
            assert row.first == listener.default_port
        if listener.worker_wide:
            wide.setdefault(
                (worker_of[row.process], f"{listener.relative_to}{listener.offset}{row.listener}"), set()
            ).add(row.first)
    assert all(len(numbers) == 1 for numbers in wide.values())
    assert found == allocate(requests, busy=busy)
