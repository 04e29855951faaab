"""Public fault reports of prefill, decode and router that do not fit: KV layouts, releases, identities.

The numbers are those of the collection; each test has the input of the report.
"""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from disagg_run import Combination, Extension, LaunchPlan, ParityError, RoleSpec, RouterSpec, SpecError
from disagg_run.planning.tested import untested_remark
from tests import sglang_plans, vllm_plans
from tests.engine_plans import PLANNED, typed
from tests.plan_values import all_words, value

# --- B62: KV that lies differently on one side --------------------------------------------------------------------


def test_B62_a_cache_manager_that_is_off_on_one_side_is_refused_with_both_values() -> None:
    """As reported: prefill alone has --disable-hybrid-kv-cache-manager."""
    off = typed("--disable-hybrid-kv-cache-manager")
    for connector in ("vllm-nixl", "vllm-moriio"):
        with pytest.raises(ParityError) as caught:
            vllm_plans.planned(connector=connector, prefill=RoleSpec(args=[off]))
        assert "hybrid-kv-cache-manager is '--disable-hybrid-kv-cache-manager' for prefill-0" in str(caught.value)
        assert "but not set for decode-0" in str(caught.value)
        assert vllm_plans.planned(connector=connector, args=[off]).bound
    with pytest.raises(ParityError, match="hybrid-kv-cache-manager"):
        vllm_plans.planned(decode=RoleSpec(args=[typed("--no-disable-hybrid-kv-cache-manager")]), args=[off])


def test_B62_sizes_between_which_blocks_differ_are_refused_where_the_model_is_not_known_to_allow_it() -> None:
    """As reported: prefill of TP 4 and decode of DP 8, whose physical blocks were 16 and 32 tokens."""
    sizes = {"prefill": RoleSpec(tp=4), "decode": RoleSpec(tp=1, dp=8), "connector": "vllm-nixl"}
    with pytest.raises(ParityError, match=r"attention-tp is 4 for prefill-0 .* but 1 for decode-0 .*'some-hybrid'"):
        vllm_plans.planned("some-hybrid", waive=["unknown-model"], **sizes)
    with pytest.raises(ParityError, match=r"block-size is '16' for prefill-0 .* but '32' for decode-0"):
        vllm_plans.planned(
            prefill=RoleSpec(args=[typed("--block-size", "16")]), decode=RoleSpec(args=[typed("--block-size", "32")])
        )


@pytest.mark.parametrize("engine", PLANNED)
def test_B62_the_run_is_not_serving_before_a_generation_came_through_the_router(engine: str) -> None:
    router = PLANNED[engine]().process("router")
    assert "generation" in [proof.kind for proof in router.ready]


# --- B95: an engine's release and the router of another day ------------------------------------------------------


def untested(launch: LaunchPlan) -> list[str]:
    return [each.message for each in launch.warnings if "not tested together" in each.message]


def test_B95_an_engine_that_asks_for_more_than_the_router_sends_is_warned_of_and_must_pass_a_generation() -> None:
    """As reported: vLLM 0.18 with MoRI-IO and a router build from before its connector option."""
    launch = vllm_plans.planned(engine_version="0.18.0", router=RouterSpec(version="0.1.5"))
    assert untested(launch) == [
        "vllm-disagg 0.18.0, vllm-moriio and router 0.1.5 were not tested together (tested are >=0.20.0,<=0.32.0 with"
        " router ==0.1.17): generations may fail although all start, so the run serves only once one has come through"
        " the router"
    ]
    router = launch.process("router")
    assert value(router, "--kv-connector") == "moriio", "the option that fills in what the connector needs"
    assert [proof.kind for proof in router.ready][-1] != "tcp"
    assert "generation" in [proof.kind for proof in router.ready]


@pytest.mark.parametrize(
    ("engine", "fields", "told"),
    [
        ("vllm", {"engine_version": "0.33.0"}, "vllm-disagg 0.33.0, vllm-moriio and router 0.1.17"),
        ("vllm", {"engine_version": "0.19.1", "connector": "vllm-nixl"}, "vllm-disagg 0.19.1, vllm-nixl and"),
        ("vllm", {"router": RouterSpec(version="0.1.18")}, "and router 0.1.18"),
        ("vllm", {"image": "v:x", "router": RouterSpec(image="r:x")}, "a router image of no stated version"),
        ("sglang", {"engine_version": "0.5.24"}, "sglang-disagg 0.5.24, sglang-mori and router 0.3.2"),
        ("sglang", {"router": RouterSpec(version="0.3.3")}, "and router 0.3.3"),
        ("atom", {"engine_version": "2026.9.1"}, "atom-disagg 2026.9.1, atom-mooncake and router 2026.8.22"),
        ("sglang", {"router": RouterSpec(mode="external", version="0.3.0")}, "let one come through your router before"),
        ("vllm", {}, ""),
        ("vllm", {"connector": "vllm-nixl"}, ""),
        ("vllm", {"engine_version": "0.22.1"}, ""),
        ("sglang", {"connector": "sglang-mooncake", "engine_version": "0.5.12.post1"}, ""),
        ("sglang", {"router": RouterSpec(mode="external")}, ""),
        ("atom", {"router": RouterSpec(version="2026.8.22")}, ""),
    ],
)
def test_B95_every_triple_that_nobody_tested_is_warned_of(engine: str, fields: dict[str, Any], told: str) -> None:
    found = untested(PLANNED[engine](**fields))
    assert (len(found) == 1 and told in found[0]) if told else found == []


def test_B95_a_connector_brings_what_it_was_tested_with_and_an_engine_that_says_nothing_is_not_warned_of() -> None:
    engine = sglang_plans.HOST.engine("sglang-disagg")
    mine = Extension(name="my-link", summary="mine", kind="connector")
    spec = sglang_plans.spec()
    remark = untested_remark(engine, mine, spec, version="0.5.23", router="0.3.2")
    assert "none is tested with my-link" in remark
    tested = attrs.evolve(mine, tested=[Combination(engine=">=0.5.20", connectors=("my-link",), router=">=0.3")])
    assert untested_remark(engine, tested, spec, version="0.5.23", router="0.3.2") == ""
    assert untested_remark(attrs.evolve(engine, tested=()), mine, spec, version="9", router="9") == ""


# --- B85: the identity of a run is not the plan's ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("engine", "connector"),
    [
        ("sglang", "sglang-mori"),
        ("sglang", "sglang-mooncake"),
        ("vllm", "vllm-moriio"),
        ("vllm", "vllm-nixl"),
        ("atom", "atom-mooncake"),
    ],
)
def test_B85_a_plan_gives_no_engine_an_identity_that_a_second_start_would_have_too(engine: str, connector: str) -> None:
    """Peers know each other by ids that engines draw at each start; the plan is the same bytes each time."""
    one, two = PLANNED[engine](connector=connector), PLANNED[engine](connector=connector)
    assert one.to_json() == two.to_json()
    assert not [word for word in all_words(one) if "engine_id" in word or "instance_id" in word]


@pytest.mark.parametrize("connector", ["vllm-moriio", "vllm-nixl"])
def test_B85_an_engine_id_by_hand_for_both_roles_is_refused(connector: str) -> None:
    with pytest.raises(SpecError, match=r"--kv-transfer-config/engine_id is 'e1' .* for prefill-0 .* and decode-0"):
        vllm_plans.planned(connector=connector, args=[typed("--kv-transfer-config.engine_id", "e1")])
