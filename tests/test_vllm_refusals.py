"""vLLM: what its start-up refuses beside a KV connector, and ports of its cache events; plans, stand-ins."""

from __future__ import annotations

import shlex
from typing import Any

import pytest

from disagg_run import DisaggError, PortError, RoleSpec, SpecError
from disagg_run.simulation.process import Died
from tests.engine_plans import typed
from tests.test_vllm_agreement import stand_in
from tests.vllm_plans import planned

ALLOCATOR, EXPANDABLE = "PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True"


@pytest.mark.parametrize("connector", ["vllm-moriio", "vllm-nixl"])
def test_memory_that_is_mapped_anew_under_a_connector_is_refused(connector: str) -> None:
    with pytest.raises(SpecError) as caught:
        planned(connector=connector, decode=RoleSpec(env={ALLOCATOR: f"x:1,{EXPANDABLE}"}))
    assert f"{ALLOCATOR} of decode-0 is 'x:1,{EXPANDABLE}' (Python LaunchSpec)" in str(caught.value)
    assert planned(connector=connector, env={ALLOCATOR: "max_split_size_mb:512"})
    assert planned(connector=connector, env={ALLOCATOR: EXPANDABLE}, args=[typed("--enable-sleep-mode")])
    narrower: dict[str, Any] = {side: RoleSpec(env={ALLOCATOR: "x:1"}) for side in ("prefill", "decode")}
    assert planned(connector=connector, env={ALLOCATOR: EXPANDABLE}, **narrower)


def test_stand_ins_refuse_such_memory_as_the_engine() -> None:
    with pytest.raises(Died, match="is incompatible with PYTORCH_CUDA_ALLOC_CONF"):
        stand_in(PYTORCH_CUDA_ALLOC_CONF=EXPANDABLE)
    assert stand_in("--enable-sleep-mode", PYTORCH_CUDA_ALLOC_CONF=EXPANDABLE)
    assert stand_in(family="nixl", version="0.17.1", PYTORCH_CUDA_ALLOC_CONF=EXPANDABLE)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("--enable-fault-tolerance", "a load balancer that knows each rank"),
        ("""--fault-tolerance-config '{"a": 1}'""", "a load balancer that knows each rank"),
        ("--enable-return-routed-experts", "the engine refuses it beside a KV connector"),
    ],
)
def test_a_flag_that_the_engine_refuses_beside_the_plan_is_refused(words: str, why: str) -> None:
    flag = words.split()[0]
    for connector in ("vllm-moriio", "vllm-nixl"):
        with pytest.raises(DisaggError, match=rf"{flag} of prefill says .*\(Python --args\).* {why}"):
            planned(connector=connector, args=[typed(*shlex.split(words))])
    with pytest.raises(Died):
        stand_in(words)
    assert planned(args=[typed(flag.replace("--enable", "--no-enable", 1))] if "--enable" in flag else [])


def test_routed_experts_are_taken_beside_files_from_0_32_on() -> None:
    asked: dict[str, Any] = {"connector": "vllm-shared-storage", "settings": {"shared_storage_path": "/shared"}}
    given = [typed("--enable-return-routed-experts")]
    assert planned(args=given, **asked)
    with pytest.raises(DisaggError, match="the engine refuses it beside a KV connector"):
        planned(args=given, engine_version="0.28.0", **asked)


@pytest.mark.parametrize("tokens", ["0", "-1", "0K"])
def test_a_batch_without_tokens_is_refused(tokens: str) -> None:
    with pytest.raises(SpecError, match=rf"max_num_batched_tokens is '{tokens}' .* give 1 or more"):
        planned(settings={"max_num_batched_tokens": tokens})
    assert planned(settings={"max_num_batched_tokens": "4K"})
    with pytest.raises(Died, match="max_num_batched_tokens"):
        stand_in(f"--max-num-batched-tokens={tokens}")


def test_stand_ins_refuse_stages_and_context_parallelism_as_the_engine() -> None:
    assert len(set(stand_in("-pp 2").moriio_ports("notify"))) < len(stand_in("-pp 2").moriio_ports("notify"))
    with pytest.raises(Died, match="must be 1 or equal to the NIXL transfer parallel size"):
        stand_in("-dcp 2", family="nixl")
    assert stand_in("-dcp 8", family="nixl").shared == stand_in(family="nixl").shared
    assert stand_in("-dcp 8").shared != stand_in().shared


# --- cache events ------------------------------------------------------------------------------------------------

EVENTS = "--kv-events-config.enable_kv_cache_events true --kv-events-config.publisher zmq"
ONE_NODE: dict[str, Any] = {
    "nodes": 1,
    "pack": True,
    "connector": "vllm-nixl",
    **{side: RoleSpec(tp=4) for side in ("prefill", "decode")},
}


@pytest.mark.parametrize(
    "words",
    [
        EVENTS,
        """--kv_events_config='{"enable_kv_cache_events": true}'""",
        f"{EVENTS} --kv-events-config.endpoint tcp://*:99",
    ],
)
def test_servers_of_one_node_that_tell_of_their_cache_on_one_port_are_refused(words: str) -> None:
    given = [typed(*shlex.split(words))]
    with pytest.raises(PortError, match=r"prefill-0 kv_events \(port \d+\) and decode-0 kv_events .*\(Python --args\)"):
        planned(args=given, **ONE_NODE)
    assert planned(args=given).process("decode-0").ports["kv_events"] in (99, 5557)


def test_servers_of_one_node_with_event_ports_of_their_own_pass() -> None:
    sides = {
        side: RoleSpec(tp=4, args=[typed(*f"{EVENTS} --kv-events-config.endpoint tcp://*:{port}".split())])
        for side, port in (("prefill", 7001), ("decode", 7002))
    }
    launch = planned(**{**ONE_NODE, **sides})
    assert launch.process("decode-0").ports["kv_events"] == 7002
    off = [typed("--kv-events-config.enable_kv_cache_events", "false")]
    assert "kv_events" not in planned(args=off, **ONE_NODE).process("decode-0").ports
    away = [typed(*f"{EVENTS} --kv-events-config.endpoint tcp://10.0.0.9:5557".split())]
    assert "kv_events" not in planned(args=away, **ONE_NODE).process("decode-0").ports


def test_http_gives_way_to_a_port_of_cache_events_unless_it_is_fixed() -> None:
    given = [typed(*f"{EVENTS} --kv-events-config.endpoint tcp://*:2584".split())]
    assert planned(args=given).process("decode-0").ports["http"] != 2584
    with pytest.raises(PortError, match="kv_events"):
        planned(args=given, settings={"server_port": 2584})
