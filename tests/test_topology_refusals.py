"""Topology: what cannot be placed is refused, with the sizes that can."""

from __future__ import annotations

import time
from typing import Any

import attrs
import pytest

from disagg_run.errors import DisaggError, SpecError, TopologyError
from disagg_run.planning.planner import plan
from disagg_run.sources import Layer, Source
from disagg_run.spec.model import LaunchSpec, Node, RoleSpec
from disagg_run.topology import MAX_UNNAMED_NODES, MAX_WORKERS, place
from tests.layouts import ENGINE, ONE_NODE_ENGINE, layout, nodes, seats
from tests.planning.toy import HOST


def refused(error: type[DisaggError], **asked: Any) -> str:
    with pytest.raises(error) as caught:
        layout(**asked)
    text = str(caught.value)
    assert "\n" not in text
    assert not text[0].isupper() or text.startswith("GPU")
    return text


def test_B58_a_worker_over_nodes_is_refused_for_an_engine_that_cannot_with_the_largest_legal_size() -> None:
    """Also fault R17."""
    text = refused(TopologyError, decode=(1, 16), engine=ONE_NODE_ENGINE)
    assert text == (
        "a decode worker of 16 GPUs (tp 16) does not fit on one node of 8 GPUs, and toy-disagg cannot span nodes:"
        " the largest legal size of a decode worker is 8 GPUs"
    )


def test_B60_sizes_that_do_not_fill_the_nodes_are_refused_per_role() -> None:
    spec = LaunchSpec(engine="toy-disagg", model="toy", gpus_per_node=4, prefill=RoleSpec(dp=2), nodes=nodes(3))
    with pytest.raises(TopologyError) as caught:
        place(spec, ENGINE, {"prefill": 8, "decode": 4})
    assert "need 5 nodes (20 GPUs), but 3 nodes are given (12 GPUs at 4 a node)" in str(caught.value)


def test_B60_gpus_per_node_beyond_what_a_node_is_known_to_have_is_refused() -> None:
    text = refused(TopologyError, nodes=nodes(2), known_gpus={1: 4})
    assert "decode-0 needs GPU 7 of node 'n1' (rank 1), which has 4 GPUs" in text
    assert "set GPUs per node to 4" in text
    assert layout((1, 4), (1, 4), nodes=nodes(2), known_gpus={0: 4, 1: 4}).bound


def test_a_tp_that_does_not_divide_is_refused_with_the_sizes_that_do() -> None:
    text = refused(TopologyError, decode=(1, 12))
    assert "a decode worker of 12 GPUs (tp 12) does not fill whole nodes of 8 GPUs" in text
    assert "8 or 16" in text


@pytest.mark.parametrize(
    ("tp", "size", "legal"), [(3, 8, "1, 2, 4 or 8"), (5, 8, "1, 2, 4 or 8"), (4, 6, "1, 2, 3 or 6"), (2, 7, "1 or 7")]
)
def test_a_tp_that_does_not_divide_the_gpus_of_a_node_is_refused_too(tp: int, size: int, legal: str) -> None:
    """It would leave GPUs over that no worker of the role can use, and no model's heads divide so."""
    text = refused(TopologyError, decode=(1, tp), prefill=(1, 1), gpus_per_node=size)
    assert text == f"decode tp {tp} does not divide the {size} GPUs of a node: choose {legal}"


def test_a_tensor_parallel_group_may_not_lie_across_nodes() -> None:
    spec = LaunchSpec(engine="toy-disagg", model="toy", decode=RoleSpec(dp=8))
    with pytest.raises(
        TopologyError, match=r"each tensor-parallel group of a decode worker has 3 GPUs \(tp 3 \* dp 8\)"
    ):
        place(spec, ENGINE, {"prefill": 8, "decode": 3})


def test_nine_workers_on_eight_gpus_are_refused() -> None:
    text = refused(TopologyError, prefill=(8, 1), decode=(1, 1), nodes=nodes(1))
    assert "8 prefill workers of 1 GPU and 1 decode worker of 1 GPU need 2 nodes (9 GPUs), but 1 node is given" in text


def test_a_node_list_that_is_too_short_names_both_counts() -> None:
    text = refused(TopologyError, prefill=(2, 8), decode=(1, 8), nodes=nodes(2))
    assert "need 3 nodes (24 GPUs), but 2 nodes are given (16 GPUs at 8 a node)" in text


def test_workers_that_only_fit_by_their_sum_are_refused() -> None:
    text = refused(TopologyError, prefill=(2, 1), decode=(1, 1), pp=(5, 5), nodes=nodes(2))
    assert "need 3 nodes (15 GPUs), but 2 nodes are given (16 GPUs at 8 a node)" in text


@pytest.mark.parametrize("workers", [0, -1])
def test_workers_below_one_are_refused(workers: int) -> None:
    assert f"prefill workers must be at least 1, not {workers}" in refused(SpecError, prefill=(workers, 8))


@pytest.mark.parametrize("tp", [0, -8])
def test_a_tp_below_one_is_refused(tp: int) -> None:
    assert f"decode tp must be at least 1, not {tp}" in refused(SpecError, decode=(1, tp))


def test_a_refusal_names_the_place_of_the_value() -> None:
    source = Source(layer=Layer.RUN_FILE, where="toy.yaml:7")
    spec = LaunchSpec(
        engine="toy-disagg", model="toy", prefill=RoleSpec(workers=0), sources={"prefill.workers": source}
    )
    with pytest.raises(SpecError, match=r"not 0 \(run file toy\.yaml:7\)"):
        place(spec, ENGINE, {"prefill": 8, "decode": 8})


def test_senseless_node_sizes_and_node_lists_are_refused() -> None:
    assert "GPUs per node must be 1 to 1024, not 0" in refused(SpecError, gpus_per_node=0)
    twice = [Node(name="a", address="FD00:0::1"), Node(name="b", address="fd00::1")]
    assert "nodes 0 and 1 have the same address 'fd00::1'" in refused(SpecError, nodes=twice)
    assert "node 0 ('a') has no address" in refused(SpecError, nodes=[Node(name="a", address="")])
    assert "prefill nodes must be at least 1, not 0" in refused(SpecError, prefill_nodes=0)


@pytest.mark.parametrize("pack", [False, True])
def test_more_workers_or_nodes_than_any_launch_has_are_refused_at_once(pack: bool) -> None:
    began = time.process_time()
    assert str(MAX_WORKERS) in refused(TopologyError, prefill=(10**12, 1), pack=pack)
    assert str(MAX_UNNAMED_NODES) in refused(TopologyError, prefill=(1, 8 * MAX_UNNAMED_NODES), pack=pack)
    assert str(MAX_UNNAMED_NODES) in refused(TopologyError, prefill=(1, 1), decode=(8, 10**12), pack=pack)
    assert str(MAX_UNNAMED_NODES) in refused(TopologyError, prefill=(2, 8), pp=(10**6, 1), pack=pack)
    assert "1000000000000" in refused(TopologyError, prefill=(10**12, 1), nodes=nodes(2), pack=pack)
    assert time.process_time() - began < 1.0


def test_the_most_nodes_of_a_launch_without_names_are_placed() -> None:
    assert len(layout((1, 8 * (MAX_UNNAMED_NODES - 1)), (1, 8)).nodes) == MAX_UNNAMED_NODES


def test_a_node_without_gpus_is_not_to_be_described_as_one_of_none() -> None:
    text = refused(TopologyError, nodes=nodes(2), known_gpus={1: 0})
    assert "GPUs per node" not in text
    assert text.endswith("use other nodes")


def test_a_bound_of_an_option_holds_for_a_spec_from_python_too() -> None:
    asked = LaunchSpec(engine="toy-disagg", model="toy-model", decode=RoleSpec(mtp=17))
    with pytest.raises(SpecError, match=r"decode.mtp is 17 \(Python LaunchSpec\), too large: at most 16"):
        plan(asked, host=HOST)
    assert plan(attrs.evolve(asked, decode=RoleSpec(mtp=16)), host=HOST).ranks


def test_an_engine_of_one_role_gets_that_role_alone() -> None:
    engine = attrs.evolve(ENGINE, roles=("decode",))
    found = place(LaunchSpec(engine="toy-disagg", model="toy"), engine, {"decode": 8})
    assert list(seats(found)) == ["decode-0"]
