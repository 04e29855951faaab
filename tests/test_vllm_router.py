"""The vLLM plugin: what the router is given, where it is found and how long it is waited for."""

from __future__ import annotations

import attrs
import pytest

from disagg_run import LaunchSpec, NodeFacts, SpecError
from disagg_vllm import versions
from tests.vllm_plans import contract, planned, value


def test_R18_the_router_is_always_told_the_port_that_its_probes_ask() -> None:
    for launch, port in ((contract(), "30000"), (contract(ROUTER_PORT="31000"), "31000")):
        router = launch.process("router")
        assert (value(router, "--port"), value(router, "--host")) == (port, "0.0.0.0")
        asked = [proof.target for proof in router.ready if proof.kind != "output"]
        assert {target.split("/")[2] for target in asked} == {f"10.0.0.1:{port}"}


def test_the_router_s_policies_are_the_public_one_unless_the_user_names_others() -> None:
    router = contract(PREFILL_ROUTER_POLICY="random", DECODE_ROUTER_POLICY="random").process("router")
    for flag in ("--policy", "--prefill-policy", "--decode-policy"):
        assert value(router, flag) == "consistent_hash"
    asked = attrs.evolve(LaunchSpec(engine="", model="").router, policy="round_robin", decode_policy="cache_aware")
    router = planned(router=asked).process("router")
    assert [value(router, flag) for flag in ("--policy", "--prefill-policy", "--decode-policy")] == [
        "round_robin",
        "round_robin",
        "cache_aware",
    ]


def test_the_router_has_an_image_of_its_own_where_containers_are_used() -> None:
    assert planned().ranks[0].groups[0].container is None
    groups = planned(image="vllm:x", ib_devices=["rdma0"]).ranks[0].groups
    images = [group.container.image for group in groups if group.container]
    assert images == ["vllm:x", versions.ROUTER_IMAGE]
    asked = attrs.evolve(LaunchSpec(engine="", model="").router, image="router:y")
    groups = planned(image="vllm:x", router=asked).ranks[0].groups
    assert [group.container.image for group in groups if group.container] == ["vllm:x", "router:y"]


def test_the_metrics_port_is_told_to_the_router_only_where_it_is_another() -> None:
    assert "--prometheus-port" not in planned().process("router").argv
    launch = planned(settings={"prometheus_port": 29555})
    assert value(launch.process("router"), "--prometheus-port") == "29555"
    busy = planned(facts={0: NodeFacts(listening_ports=[29000])}, ib_devices=["rdma0"]).process("router")
    assert busy.ports["prometheus"] != 29000
    assert value(busy, "--prometheus-port") == str(busy.ports["prometheus"])


def test_another_router_than_ours_is_refused() -> None:
    assert contract(ROUTER_TYPE="vllm-router")
    with pytest.raises(SpecError, match="ROUTER_TYPE"):
        contract(ROUTER_TYPE="nginx")
