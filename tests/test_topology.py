"""Workers over nodes and GPUs: what fits, where it goes, and what is refused with which words."""

from __future__ import annotations

import time
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from disagg_run.errors import SpecError, TopologyError
from disagg_run.spec.model import LaunchSpec, Role, RoleSpec
from disagg_run.topology import place, worker_gpus, worker_name
from tests.layouts import EIGHT, ENGINE, layout, nodes, seats


def test_each_worker_has_a_node_of_its_own_where_no_nodes_are_named() -> None:
    found = layout((2, 8), (1, 8))
    assert seats(found) == {"prefill-0": (0, EIGHT), "prefill-1": (1, EIGHT), "decode-0": (2, EIGHT)}
    assert not found.bound
    assert [node.address for node in found.nodes] == ["192.0.2.1", "192.0.2.2", "192.0.2.3"]
    assert [node.name for node in found.nodes] == ["node0", "node1", "node2"]
    assert found.warnings == ()


def test_a_small_worker_takes_the_first_gpus_of_its_own_node() -> None:
    assert seats(layout((1, 4), (1, 2))) == {"prefill-0": (0, (0, 1, 2, 3)), "decode-0": (1, (0, 1))}


def test_tp4_on_nodes_of_four_gpus_is_one_node() -> None:
    """Fault R3: (TP+7)/GPUS_PER_NODE made two nodes of it."""
    assert seats(layout((1, 4), (1, 4), gpus_per_node=4)) == {
        "prefill-0": (0, (0, 1, 2, 3)),
        "decode-0": (1, (0, 1, 2, 3)),
    }


def test_a_worker_over_two_nodes_has_a_head_and_a_follower() -> None:
    """Fault R2: nodes are counted in nodes, not in workers."""
    found = layout((1, 8), (2, 16))
    assert seats(found) == {
        "prefill-0": (0, EIGHT),
        "decode-0": (1, EIGHT),
        "decode-0.1": (2, EIGHT),
        "decode-1": (3, EIGHT),
        "decode-1.1": (4, EIGHT),
    }
    follower = found.processes[2].process
    assert (follower.head, follower.node_rank, follower.node_count, follower.worker) == (False, 1, 2, 0)
    assert worker_name(follower) == "decode-0"
    assert [placed.process.head for placed in found.processes] == [True, True, False, True, False]
    assert [node.address for node in found.nodes] == [f"192.0.2.{number}" for number in range(1, 6)]


def test_data_and_pipeline_parallel_sizes_multiply_a_workers_gpus() -> None:
    assert worker_gpus(RoleSpec(pp=2, dp=4), 2) == 16
    assert worker_gpus(RoleSpec(dp_attention=True, expert_parallel=True), 8) == 8
    spec = LaunchSpec(engine="toy-disagg", model="toy", decode=RoleSpec(dp=4, pp=2))
    found = place(spec, ENGINE, {"prefill": 8, "decode": 2})
    assert [placed.process.name for placed in found.processes] == ["prefill-0", "decode-0", "decode-0.1"]


def test_workers_share_nodes_when_fewer_nodes_are_given() -> None:
    found = layout((2, 4), (2, 4), nodes=nodes(2))
    assert seats(found) == {
        "prefill-0": (0, (0, 1, 2, 3)),
        "prefill-1": (0, (4, 5, 6, 7)),
        "decode-0": (1, (0, 1, 2, 3)),
        "decode-1": (1, (4, 5, 6, 7)),
    }
    assert found.bound


def test_prefill_and_decode_share_one_node() -> None:
    assert seats(layout((1, 2), (1, 4), nodes=nodes(1))) == {"prefill-0": (0, (0, 1)), "decode-0": (0, (2, 3, 4, 5))}


def test_pack_shares_even_where_nodes_are_enough_and_names_the_idle_ones() -> None:
    found = layout((1, 4), (1, 4), nodes=nodes(3), pack=True)
    assert {rank for rank, _ in seats(found).values()} == {0}
    assert [node.name for node in found.nodes] == ["n0"]
    assert found.warnings == ("1 node of the 3 given is enough; idle, without a rank: n1, n2",)


def test_packing_goes_back_to_a_gap_that_a_smaller_worker_fits_in() -> None:
    found = layout((2, 2), (2, 2), pp=(3, 1), pack=True)
    assert seats(found) == {
        "prefill-0": (0, (0, 1, 2, 3, 4, 5)),
        "prefill-1": (1, (0, 1, 2, 3, 4, 5)),
        "decode-0": (0, (6, 7)),
        "decode-1": (1, (6, 7)),
    }


def test_a_worker_over_nodes_takes_whole_free_nodes_when_packed() -> None:
    found = layout((1, 4), (1, 16), nodes=nodes(3), pack=True)
    assert seats(found) == {"prefill-0": (0, (0, 1, 2, 3)), "decode-0": (1, EIGHT), "decode-0.1": (2, EIGHT)}


def test_nodes_of_a_role_are_checked_against_its_workers() -> None:
    assert len(layout((2, 16), prefill_nodes=4).nodes) == 5
    with pytest.raises(TopologyError) as caught:
        layout((2, 8), prefill_nodes=4)
    assert "2 prefill workers of 8 GPUs cannot fill 4 nodes of 8 GPUs" in str(caught.value)
    assert "give prefill 2 nodes, or make each worker's tp * pp * dp 16" in str(caught.value)


def test_workers_are_spread_evenly_over_the_nodes_of_their_role_and_never_beyond() -> None:
    found = layout((3, 4), (1, 4), prefill_nodes=2, decode_nodes=1, nodes=nodes(3), pack=True)
    assert seats(found) == {
        "prefill-0": (0, (0, 1, 2, 3)),
        "prefill-1": (0, (4, 5, 6, 7)),
        "prefill-2": (1, (0, 1, 2, 3)),
        "decode-0": (2, (0, 1, 2, 3)),
    }


def test_a_role_without_nodes_of_its_own_shares_what_the_other_leaves() -> None:
    found = layout((2, 4), (1, 8), decode_nodes=1, nodes=nodes(2))
    assert seats(found) == {
        "prefill-0": (0, (0, 1, 2, 3)),
        "prefill-1": (0, (4, 5, 6, 7)),
        "decode-0": (1, EIGHT),
    }
    assert seats(layout((1, 4), (2, 4), prefill_nodes=1, nodes=nodes(2)))["decode-1"] == (1, (4, 5, 6, 7))


def test_more_nodes_than_needed_leave_the_last_ones_idle() -> None:
    found = layout(nodes=nodes(4))
    assert [node.name for node in found.nodes] == ["n0", "n1"]
    assert found.warnings == ("2 nodes of the 4 given are enough; idle, without a rank: n2, n3",)


def test_a_simulation_without_nodes_is_bound_to_loopback_addresses() -> None:
    found = layout((2, 8), simulate=True)
    assert found.bound
    assert [node.address for node in found.nodes] == ["127.0.0.1", "127.0.0.2", "127.0.0.3"]


def test_a_simulation_on_given_nodes_keeps_their_addresses() -> None:
    assert [node.address for node in layout(nodes=nodes(2), simulate=True).nodes] == ["10.0.0.0", "10.0.0.1"]


def test_unbound_addresses_go_on_in_the_next_reserved_range() -> None:
    found = layout((1100, 8), (1, 8))
    addresses = [node.address for node in found.nodes]
    assert addresses[253:255] == ["192.0.2.254", "198.51.100.1"]
    assert addresses[507:509] == ["198.51.100.254", "203.0.113.1"]
    assert addresses[761:763] == ["203.0.113.254", "198.18.0.1"]
    assert addresses[1016:1018] == ["198.18.0.255", "198.18.1.0"]
    assert len(set(addresses)) == len(addresses)


def test_a_thousand_nodes_are_placed_in_a_moment() -> None:
    variants: list[dict[str, Any]] = [{}, {"pack": True}, {"nodes": nodes(1024)}]
    for spec in variants:
        began = time.process_time()
        layout((4096, 1), (4096, 1), **{"nodes": nodes(1024), **spec})
        layout((512, 8), (512, 8), **spec)
        assert time.process_time() - began < 1.0


sizes = st.integers(-1, 20)

role_specs = st.builds(
    RoleSpec,
    workers=st.integers(-1, 9),
    pp=st.integers(0, 3),
    dp=st.integers(0, 3),
    nodes=st.none() | st.integers(-1, 6),
)


@given(
    prefill=role_specs,
    decode=role_specs,
    tp=st.tuples(sizes, sizes),
    size=st.integers(0, 9),
    given_nodes=st.none() | st.integers(1, 12),
    pack=st.booleans(),
    multi=st.booleans(),
)
def test_any_spec_gives_a_layout_without_double_use_or_a_clear_error(
    prefill: RoleSpec,
    decode: RoleSpec,
    tp: tuple[int, int],
    size: int,
    given_nodes: int | None,
    pack: bool,
    multi: bool,
) -> None:
    listed = () if given_nodes is None else nodes(given_nodes)
    spec = LaunchSpec(
        engine="toy-disagg", model="toy", prefill=prefill, decode=decode, gpus_per_node=size, pack=pack, nodes=listed
    )
    sizes_of: dict[Role, int] = {"prefill": tp[0], "decode": tp[1]}
    engine = attrs.evolve(ENGINE, multi_node_workers=multi)
    try:
        found = place(spec, engine, sizes_of)
    except (SpecError, TopologyError):
        return
    used: set[tuple[int, int]] = set()
    gpus_of: dict[str, int] = {}
    for placed in found.processes:
        mine = {(placed.rank, gpu) for gpu in placed.process.gpus}
        assert mine
        assert not mine & used
        assert all(0 <= gpu < size for _, gpu in mine)
        used |= mine
        gpus_of[worker_name(placed.process)] = gpus_of.get(worker_name(placed.process), 0) + len(mine)
    assert {rank for rank, _ in used} == set(range(len(found.nodes)))
    expected = {
        f"{role}-{index}": worker_gpus(spec.role(role), size_of)
        for role, size_of in sizes_of.items()
        for index in range(spec.role(role).workers)
    }
    assert gpus_of == expected
    assert len({placed.process.name for placed in found.processes}) == len(found.processes)
    assert found.processes[0].process.name == "prefill-0"
    assert found == place(spec, engine, sizes_of)
