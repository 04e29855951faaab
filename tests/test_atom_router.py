"""The ATOM plugin's router and readiness, and what it asks of a node."""

from __future__ import annotations

import attrs
import pytest

from disagg_atom import connector_mooncake
from disagg_run import ArgText, FlagError, LaunchSpec, Nic, NodeFacts
from tests.atom_plans import contract, nic, planned
from tests.parity.case import load
from tests.plan_values import source, value


@pytest.mark.parametrize("name", ["atom/dsv4_2p1d_dpa_tp8", "atom/kimi_1p2d_tp4_tp8"])
def test_R1_readiness_is_asked_of_each_role_on_its_own_port_as_the_launcher_does(name: str) -> None:
    case = load(name)
    barriers = [each for each in case.data["ranks"][0]["barriers"] if each["kind"] == "http_ok"]
    launch = case.plan()
    proofs = [proof for each in launch.ranks for process in each.processes() for proof in process.ready]
    asked = {(proof.target, proof.timeout_s) for proof in proofs if proof.kind == "http"}
    expected = {(t.replace("//0.0.0.0:", "//10.0.0.1:"), b["timeout_s"]) for b in barriers for t in b["targets"]}
    assert asked == expected


def test_the_router_is_proved_by_its_models_and_then_a_generation() -> None:
    ready = planned(settings={"router_timeout_s": 60}, served_model_name="dsv4").process("router").ready
    assert [(each.kind, each.target, each.timeout_s) for each in ready] == [
        ("http", "http://10.0.0.1:30000/v1/models", 60.0),
        ("generation", "http://10.0.0.1:30000/v1/completions", 60.0),
    ]
    assert {each.identity["served_model"] for each in ready} == {"dsv4"}


def test_the_router_s_metrics_port_can_be_fixed() -> None:
    launch = planned(settings={"prometheus_port": 29555})
    assert value(launch.process("router"), "--prometheus-port") == "29555"
    assert launch.process("router").ports["prometheus"] == 29555
    assert source(launch, "router", "argv/--prometheus-port").startswith("Python")


def test_the_model_id_is_the_served_name_or_the_model_as_typed() -> None:
    assert planned().model.served_name == "/models/DeepSeek-V4-Pro"
    launch = planned(served_model_name="dsv4")
    assert launch.model.served_name == "dsv4"
    for name in ("prefill-0", "decode-0"):
        assert value(launch.process(name), "--served-model-name") == "dsv4"
        assert launch.process(name).ready[0].identity["served_model"] == "dsv4"


def test_the_job_scripts_router_policies_count_unless_they_are_what_it_always_exports() -> None:
    argv = contract(PREFILL_ROUTER_POLICY="random", DECODE_ROUTER_POLICY="random").process("router").argv
    assert not {"--prefill-policy", "--decode-policy"} & {*argv}
    router = contract(PREFILL_ROUTER_POLICY="cache_aware").process("router")
    assert value(router, "--prefill-policy") == "cache_aware"


def test_router_policies_for_a_role_stand_only_where_they_differ() -> None:
    argv = contract(PREFILL_ROUTER_POLICY="random", DECODE_ROUTER_POLICY="random").process("router").argv
    assert "--prefill-policy" not in argv
    router = attrs.evolve(LaunchSpec(engine="", model="").router, policy="round_robin", prefill_policy="cache_aware")
    other = planned(router=router).process("router")
    assert value(other, "--policy") == "round_robin"
    assert value(other, "--prefill-policy") == "cache_aware"
    assert "--decode-policy" not in other.argv


def test_stand_ins_get_the_very_argv() -> None:
    launch = planned(simulate=True)
    for name, module in (("decode-0", "disagg_atom.simulation"), ("router", "disagg_atom.atomesh_simulation")):
        process = launch.process(name)
        assert process.exec[:4] == ("@python", "-m", module, "--")
        assert process.exec[4:] == process.argv


def test_R18_the_router_is_always_told_the_port_that_its_probes_ask() -> None:
    for launch, port in ((contract(), "30000"), (contract(ROUTER_PORT="31000"), "31000")):
        router = launch.process("router")
        assert value(router, "--port") == port
        assert {proof.target.split("/")[2] for proof in router.ready} == {f"10.0.0.1:{port}"}


def test_B67_a_flag_that_the_router_does_not_have_is_refused_with_the_nearest() -> None:
    router = attrs.evolve(LaunchSpec(engine="", model="").router, args=[ArgText(words=("--cache-treshold", "0.3"))])
    with pytest.raises(FlagError, match=r"no flag '--cache-treshold'.*did you mean '--cache-threshold'"):
        planned(router=router)


def test_a_container_gets_gpus_nics_limits_and_the_nics_own_libraries() -> None:
    facts = {0: NodeFacts(nics=[nic("ionic_0")]), 1: NodeFacts(nics=[Nic(name="mlx5_0", driver="mlx5_core")])}
    launch = planned(facts=facts, image="atom:x", ib_devices=["ionic_0"])
    containers = [rank.groups[0].container for rank in launch.ranks]
    assert containers[0] is not None
    assert containers[1] is not None
    needs = containers[0].needs
    assert {"/dev/kfd", "/dev/dri", "/dev/infiniband"} <= set(needs.devices)
    assert needs.ulimits["memlock"] == "-1"
    assert "/models/DeepSeek-V4-Pro" in {mount.source for mount in needs.mounts}
    ionic = {mount.source for mount in needs.mounts if "ionic" in mount.source}
    assert ionic
    assert all(mount.optional for mount in needs.mounts if mount.source in ionic)
    assert not {mount.source for mount in containers[1].needs.mounts if "ibverbs" in mount.source}


def test_preflight_asks_for_model_gpus_libraries_and_named_devices() -> None:
    checks = {(each.kind, each.target) for each in planned(ib_devices=["rdma0"]).ranks[0].groups[0].preflight}
    assert checks == {
        ("path_exists", "/models/DeepSeek-V4-Pro"),
        ("device_present", "/dev/kfd"),
        ("device_present", "/dev/dri"),
        ("path_exists", "/sys/class/infiniband/rdma0"),
        ("path_exists", connector_mooncake.LIBRARIES),
    }
