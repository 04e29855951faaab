"""sglang-router's command: policies, resilience, ports, and who may change them."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from disagg_run import ArgText, FlagError, LaunchPlan, NodeFacts, PlannedProcess, RoleSpec, SpecError, plan
from disagg_run.spec.model import RouterSpec
from disagg_run.spec.reading import read_spec
from tests.sglang_plans import CONTRACT, HOST, contract, planned, source, value

FIELDS = ("--policy", "--prefill-policy", "--decode-policy")


def policies(launch: LaunchPlan) -> list[str | None]:
    process = launch.process("router")
    return [value(process, flag) if flag in process.argv else None for flag in FIELDS]


def router(**environ: str) -> PlannedProcess:
    return contract(**environ).process("router")


def test_policies_are_random_until_somebody_chooses() -> None:
    always = {"PREFILL_ROUTER_POLICY": "random", "DECODE_ROUTER_POLICY": "random"}
    assert policies(contract(**always)) == ["random"] * 3
    assert policies(contract(DECODE_ROUTER_POLICY="round_robin")) == ["random", "random", "round_robin"]
    assert policies(planned(router=RouterSpec(policy="cache_aware"))) == ["cache_aware"] * 3
    options = {"router.policy": "round_robin"}
    asked = read_spec(options=options, recipe=None, environ={**CONTRACT, **always}, host=HOST)
    assert policies(plan(asked, host=HOST)) == ["round_robin"] * 3


def test_the_later_layer_chooses_a_policy_and_is_named() -> None:
    options = {"router.prefill_policy": "cache_aware"}
    environ = {**CONTRACT, "PREFILL_ROUTER_POLICY": "round_robin"}
    launch = plan(read_spec(options=options, recipe=None, environ=environ, host=HOST), host=HOST)
    assert policies(launch) == ["random", "cache_aware", "random"]
    assert source(launch, "router", "argv/--prefill-policy") == "command line --router-prefill-policy"
    contractual = contract(PREFILL_ROUTER_POLICY="round_robin")
    assert source(contractual, "router", "argv/--prefill-policy") == "environment contract PREFILL_ROUTER_POLICY"


def test_policy_flags_as_one_text_replace_all_of_them() -> None:
    launch = contract(ROUTER_POLICY_FLAGS="--policy power_of_two --enable-igw")
    assert policies(launch) == ["power_of_two", None, None]
    assert "--enable-igw" in launch.process("router").argv
    assert source(launch, "router", "argv/--policy") == "environment contract ROUTER_POLICY_FLAGS"


def test_an_agentic_run_routes_by_prefix_and_drops_no_busy_worker() -> None:
    process = router(IS_AGENTIC="1", PREFILL_ROUTER_POLICY="cache_aware")
    assert value(process, "--policy") == "cache_aware"
    assert value(process, "--cache-threshold") == "0.3"
    assert value(process, "--health-failure-threshold") == "100"
    assert "--retry-max-retries" not in process.argv
    other = router(IS_AGENTIC="1", ROUTER_RESILIENCE_FLAGS="--health-check-timeout-secs 9")
    assert value(other, "--health-check-timeout-secs") == "9"
    assert "--disable-circuit-breaker" not in other.argv


def test_retries_as_one_text_replace_all_of_them() -> None:
    process = router(ROUTER_CB_ARGS="--cb-timeout-duration-secs 5")
    assert value(process, "--cb-timeout-duration-secs") == "5"
    assert "--retry-max-retries" not in process.argv


def test_router_flags_that_are_no_words_are_refused() -> None:
    with pytest.raises(SpecError, match=r"router_policy_flags is .*ROUTER_POLICY_FLAGS\), which is no list of words"):
        contract(ROUTER_POLICY_FLAGS="--policy 'x")
    assert policies(contract(ROUTER_POLICY_FLAGS="")) == ["random"] * 3


def test_R32_a_policy_that_the_router_does_not_have_is_refused() -> None:
    with pytest.raises(FlagError, match=r"PREFILL_ROUTER_POLICY\) does not take 'consistent_hashing': it takes"):
        contract(IS_AGENTIC="1", PREFILL_ROUTER_POLICY="consistent_hashing")


def test_R33_the_router_is_not_told_to_choose_among_dp_ranks() -> None:
    agentic = router(IS_AGENTIC="1", PREFILL_ROUTER_POLICY="cache_aware")
    assert "--dp-aware" not in agentic.argv
    with pytest.raises(SpecError, match=r"--dp-aware \(environment contract ROUTER_POLICY_FLAGS\) makes .* no request"):
        contract(ROUTER_POLICY_FLAGS="--policy cache_aware --dp-aware")
    by_hand = RouterSpec(args=[ArgText(words=("--dp-aware",))])
    with pytest.raises(SpecError, match=r"--dp-aware \(Python\) makes sglang-router 0\.3\.2"):
        planned(router=by_hand)
    other = planned(router=attrs.evolve(by_hand, version="0.3.9"))
    assert "--dp-aware" in other.process("router").argv


def test_B67_a_flag_that_the_router_does_not_have_is_refused_with_the_nearest() -> None:
    args = [ArgText(words=("--cache-treshold", "0.3"))]
    with pytest.raises(FlagError, match=r"no flag '--cache-treshold'.*did you mean '--cache-threshold'"):
        planned(router=RouterSpec(args=args))
    with pytest.raises(FlagError, match=r"no flag '--cb-timeout'"):
        contract(ROUTER_CB_ARGS="--cb-timeout 5")


def test_the_router_is_always_told_the_port_that_its_probes_ask() -> None:
    for launch, port in ((contract(), "30000"), (contract(ROUTER_PORT="31000"), "31000")):
        process = launch.process("router")
        assert value(process, "--port") == port
        assert {proof.target.split("/")[2] for proof in process.ready} == {f"10.0.0.1:{port}"}


def test_a_metrics_port_that_somebody_has_moves_and_is_then_told() -> None:
    assert "--prometheus-port" not in router().argv
    launch = planned(facts={0: NodeFacts(listening_ports=[29000])}, ib_devices=["rdma0"])
    process = launch.process("router")
    assert value(process, "--prometheus-port") == str(process.ports["prometheus"]) != "29000"
    assert "29000 is taken on this node" in source(launch, "router", "argv/--prometheus-port")
    assert value(planned(settings={"prometheus_port": 29500}).process("router"), "--prometheus-port") == "29500"


def test_waiting_for_the_router_is_as_long_as_asked() -> None:
    def waits(launch: LaunchPlan) -> list[float]:
        return [proof.timeout_s for proof in launch.process("router").ready]

    assert waits(contract()) == [1800, 2400]
    assert waits(contract(MODEL_NAME="DeepSeek-V4-Pro")) == [3000, 3600]
    short = contract(SYNC_BARRIER_TIMEOUT="900", ROUTER_CANARY_TIMEOUT="120")
    assert waits(short) == [900, 1020]
    assert short.process("decode-0").ready[0].timeout_s == 900


def test_an_external_router_is_not_started() -> None:
    launch = planned(router=RouterSpec(mode="external"))
    assert launch.process_names() == ("prefill-0", "decode-0")


def test_metrics_are_switched_on_for_both_roles() -> None:
    on, off = contract(ENABLE_METRICS="1"), contract(ENABLE_METRICS="0")
    for name in ("prefill-0", "decode-0"):
        assert "--enable-metrics" in on.process(name).argv
        assert "--enable-metrics" not in off.process(name).argv


def test_a_served_name_is_told_to_servers_and_asked_of_them() -> None:
    launch = planned(served_model_name="r1", prefill=RoleSpec(workers=2), nodes=3)
    for name in ("prefill-0", "prefill-1", "decode-0"):
        process = launch.process(name)
        assert value(process, "--served-model-name") == "r1"
        assert process.ready[0].identity["served_model"] == "r1"
    assert planned().process("decode-0").ready[0].identity["served_model"] == "/models/DeepSeek-R1-0528"


def test_settings_of_the_router_do_not_reach_servers() -> None:
    changed: dict[str, Any] = {"prometheus_port": 29500, "router_cb_args": "--retry-max-retries 1"}
    plain, other = planned(), planned(settings=changed)
    for name in ("prefill-0", "decode-0"):
        assert attrs.asdict(plain.process(name)) == attrs.asdict(other.process(name))
