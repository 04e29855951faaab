"""Ports: defaults stand, what clashes moves, what cannot move is refused, and no two listeners ever share a number."""

from __future__ import annotations

import pytest

from disagg_run.ports import allocate
from disagg_run.records import Listener
from disagg_run.sources import Layer, Source
from tests.port_requests import derived, http, no_overlap, refused, request

# --- defaults and moves -----------------------------------------------------------------------------------------------


def test_default_ports_stand_where_nothing_clashes() -> None:
    found = allocate(
        [
            request("prefill-0", http(8010), Listener(name="handshake", default_port=6301, count=8)),
            request("decode-0", http(8020)),
            request("router", http(30000), Listener(name="metrics", default_port=29100)),
        ]
    )
    assert found.ports["prefill-0"] == {"http": 8010, "handshake": 6301}
    assert found.ports["decode-0"] == {"http": 8020}
    assert found.ports["router"] == {"http": 30000, "metrics": 29100}
    assert all(row.moved_from is None for row in found.table)
    assert found.warnings == ()


def test_the_second_worker_of_a_node_moves_by_its_width() -> None:
    found = allocate(
        request(f"prefill-{index}", http(8010), Listener(name="handshake", default_port=6301, count=8))
        for index in range(3)
    )
    assert [found.ports[f"prefill-{index}"] for index in range(3)] == [
        {"http": 8010, "handshake": 6301},
        {"http": 8011, "handshake": 6311},
        {"http": 8012, "handshake": 6321},
    ]
    moved = [(row.process, row.listener, row.first, row.last, row.moved_from) for row in found.table if row.moved_from]
    assert moved == [
        ("prefill-1", "http", 8011, 8011, 8010),
        ("prefill-1", "handshake", 6311, 6318, 6301),
        ("prefill-2", "http", 8012, 8012, 8010),
        ("prefill-2", "handshake", 6321, 6328, 6301),
    ]


def test_the_same_port_on_another_node_does_not_clash() -> None:
    found = allocate([request("prefill-0", http()), request("prefill-1", http(), rank=1)])
    assert found.ports["prefill-1"] == found.ports["prefill-0"] == {"http": 8000}


def test_a_moved_worker_never_takes_a_default_that_could_stand() -> None:
    found = allocate(
        [
            request("prefill-0", http(8010)),
            request("prefill-1", http(8010)),
            request("decode-0", http(8011)),
        ]
    )
    assert {name: ports["http"] for name, ports in found.ports.items()} == {
        "prefill-0": 8010,
        "prefill-1": 8012,
        "decode-0": 8011,
    }


def test_a_move_jumps_over_the_ephemeral_range() -> None:
    listener = Listener(name="notify", default_port=32760, count=8)
    found = allocate([request("prefill-0", listener), request("prefill-1", listener)])
    assert found.ports["prefill-1"]["notify"] == 61000
    assert found.warnings == ()


def test_a_move_that_finds_nothing_above_starts_again_from_the_lowest_free_port() -> None:
    listener = Listener(name="notify", default_port=65530, count=6)
    found = allocate([request("prefill-0", listener), request("prefill-1", listener)], busy={0: frozenset({1026})})
    assert found.ports["prefill-0"]["notify"] == 65530
    assert found.ports["prefill-1"]["notify"] == 1027


def test_no_ports_left_is_refused() -> None:
    listener = Listener(name="all", default_port=1, count=40000)
    text = refused(request("prefill-0", listener), request("prefill-1", listener))
    assert "no free ports are left for prefill-1 all on rank 0" in text


def test_a_default_that_something_already_listens_on_moves_with_a_warning() -> None:
    found = allocate([request("prefill-0", http())], busy={0: frozenset({8000, 8001})})
    assert found.ports["prefill-0"]["http"] == 8002
    assert found.warnings == ("something already listens near port 8000 on rank 0: moved http of prefill-0 (now 8002)",)


def test_a_listener_of_no_ports_reserves_nothing_and_has_no_port() -> None:
    found = allocate([request("prefill-0", http()), request("decode-0", http(count=0), derived(13))])
    assert found.ports["prefill-0"] == {"http": 8000}
    assert found.ports["decode-0"] == {"http+13": 8013}
    assert len(found.table) == 2


# --- derived and worker-wide listeners --------------------------------------------------------------------------------


def test_derived_listeners_move_with_their_base() -> None:
    shape = (http(), derived(13), derived(233, 7), Listener(name="http+1013", relative_to="http+13", offset=1000))
    found = allocate([request("prefill-0", *shape), request("prefill-1", *shape)])
    assert found.ports["prefill-0"] == {"http": 8000, "http+13": 8013, "http+233": 8233, "http+1013": 9013}
    base = found.ports["prefill-1"]["http"]
    assert found.ports["prefill-1"] == {
        "http": base,
        "http+13": base + 13,
        "http+233": base + 233,
        "http+1013": base + 1013,
    }
    assert base != 8000
    assert no_overlap(found)


def test_a_default_whose_derived_port_would_be_out_of_range_moves() -> None:
    found = allocate([request("prefill-0", http(65500), derived(233))])
    assert found.ports["prefill-0"]["http+233"] <= 65535
    assert found.table[0].moved_from == 65500
    below = allocate([request("prefill-0", http(200), derived(-233))])
    assert below.ports["prefill-0"]["http+-233"] >= 1024


def test_a_fixed_port_whose_derived_port_would_be_out_of_range_is_refused() -> None:
    text = refused(request("prefill-0", http(65400, pinned=True), derived(233)))
    assert "prefill-0 http+233 would need port 65633, which is not within 1 to 65535" in text
    assert "prefill-0 http is fixed at 65400" in text


def test_a_worker_wide_listener_has_one_number_on_all_nodes_of_its_worker() -> None:
    join = Listener(name="join", default_port=20000, worker_wide=True)
    derived_join = derived(13, base="join")
    found = allocate(
        [
            request("prefill-0", http(), join, derived_join),
            request("decode-0", http(), join, derived_join, rank=1),
            request("decode-0.1", http(), join, derived_join, rank=2),
            request("other", Listener(name="x", default_port=20000, pinned=True), rank=2),
        ]
    )
    assert found.ports["prefill-0"]["join"] == 20000
    assert found.ports["decode-0"]["join"] == found.ports["decode-0.1"]["join"] == 20020
    assert found.ports["decode-0"]["join+13"] == found.ports["decode-0.1"]["join+13"] == 20033
    assert found.ports["decode-0.1"]["http"] == 8000


def test_a_follower_may_derive_from_a_worker_wide_listener_of_its_head() -> None:
    join = Listener(name="join", default_port=20000, worker_wide=True)
    found = allocate(
        [
            request("decode-0", join),
            request("decode-1", join),
            request("decode-0.1", derived(5, base="join"), rank=1),
            request("decode-1.1", derived(5, base="join"), rank=2),
        ]
    )
    assert found.ports["decode-1.1"]["join+5"] == found.ports["decode-1"]["join"] + 5 != 20005
    assert found.ports["decode-0.1"]["join+5"] == 20005


def test_a_worker_fixed_at_two_ports_is_refused() -> None:
    text = refused(
        request("decode-0", Listener(name="join", default_port=1111, worker_wide=True, pinned=True)),
        request("decode-0.1", Listener(name="join", default_port=2222, worker_wide=True, pinned=True), rank=1),
    )
    assert "decode-0 join is fixed at port 1111 and decode-0.1 join at 2222" in text


# --- fixed ports ------------------------------------------------------------------------------------------------------


def test_a_fixed_port_stands_and_the_earlier_default_moves() -> None:
    found = allocate([request("prefill-0", http()), request("decode-0", http(pinned=True))])
    assert found.ports["decode-0"]["http"] == 8000
    assert found.ports["prefill-0"]["http"] == 8001


def test_a_fixed_port_of_two_workers_on_a_node_is_refused_with_both_named() -> None:
    source = Source(layer=Layer.COMMAND_LINE, where="--prefill-port")
    fixed = http(9000, pinned=True, source=source)
    text = refused(request("prefill-0", fixed, rank=3), request("prefill-1", fixed, rank=3))
    assert text == (
        "prefill-0 http (port 9000) and prefill-1 http (port 9000) clash on rank 3: prefill-1 http is fixed at 9000"
        " (command line --prefill-port): leave the port open, so that the second worker of a node moves, or give each"
        " worker nodes of its own"
    )


def test_fixed_ports_of_different_listeners_that_overlap_are_refused() -> None:
    text = refused(
        request("prefill-0", Listener(name="handshake", default_port=6301, count=8, pinned=True)),
        request("router", http(6305, pinned=True)),
    )
    assert "prefill-0 handshake (port 6301-6308) and router http (port 6305) clash on rank 0" in text


def test_a_fixed_port_that_something_listens_on_is_refused() -> None:
    text = refused(request("prefill-0", http(pinned=True), rank=2), busy={2: frozenset({8000})})
    assert "prefill-0 http needs port 8000 on rank 2, but something already listens on 8000 there" in text
    assert allocate([request("prefill-0", http(pinned=True))], busy={2: frozenset({8000})})


def test_overlap_within_one_process_that_no_move_can_mend_is_refused() -> None:
    text = refused(request("prefill-0", http(count=300), derived(233, 7)))
    assert "prefill-0 http (ports 8000-8299) and prefill-0 http+233 (ports 8233-8239) overlap on rank 0" in text
    both = (http(pinned=True), Listener(name="side", default_port=8000, pinned=True))
    assert "prefill-0 http (port 8000) and prefill-0 side (port 8000) clash" in refused(request("prefill-0", *both))


@pytest.mark.parametrize(
    ("listeners", "words"),
    [
        (
            [http(), http(9000)],
            "prefill-0 has two listeners called 'http'"
            " (from engine default (plugin toy-disagg) and engine default (plugin toy-disagg))",
        ),
        ([http(count=-1)], "listener 'http' of prefill-0 has count -1"),
        ([http(0)], "port 0 of listener 'http' of prefill-0 is not within 1 to 65535"),
        ([http(70000, pinned=True)], "port 70000 of listener 'http' of prefill-0 is not within 1 to 65535"),
        ([http(), derived(1, base="htp")], "is derived from 'htp', which it does not have"),
        (
            [
                Listener(name="a", relative_to="b", offset=1),
                Listener(name="b", relative_to="a", offset=1, worker_wide=True),
            ],
            "which is derived from it",
        ),
        ([Listener(name="a", relative_to="a", offset=1)], "listener 'a' of prefill-0 is derived from 'a'"),
    ],
)
def test_listeners_that_make_no_sense_are_refused(listeners: list[Listener], words: str) -> None:
    assert words in refused(request("prefill-0", *listeners))
