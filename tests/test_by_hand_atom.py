"""ATOM, its connector and atomesh: what is given by hand against the plan is refused, what agrees is taken."""

from __future__ import annotations

import json
import re
from typing import Any

import attrs
import pytest

from disagg_run import DisaggError, Node, ProcessSpec, RoleSpec, plan
from disagg_run.spec.model import RouterSpec
from tests.atom_plans import HOST, planned, spec
from tests.engine_plans import typed
from tests.plan_values import source, value

DPA = {"prefill": RoleSpec(dp_attention=True), "decode": RoleSpec(dp_attention=True)}
PREFILL, DECODE, ROUTER = "prefill", "decode", "router"
#: The first process of each.
NAMES = {PREFILL: "prefill-0", DECODE: "decode-0", ROUTER: "router"}


def told(target: str, *words: str) -> dict[str, Any]:
    """Words by hand for the servers of a role, or for the router."""
    args = [typed(*words)]
    return {ROUTER: RouterSpec(args=args)} if target == ROUTER else {target: RoleSpec(args=args)}


def config(**leaves: Any) -> tuple[str, str]:
    """A configuration of the connector by hand."""
    return "--kv-transfer-config", json.dumps(leaves)


def refused(**fields: Any) -> str:
    """The message for a plan that is refused."""
    with pytest.raises(DisaggError) as caught:
        planned(**fields)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# --- flags -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "words", "said"),
    [
        (PREFILL, "--host 127.0.0.1", "made for '0.0.0.0'"),
        (PREFILL, "--host ::", "made for '0.0.0.0'"),
        (PREFILL, "--host 10.0.0.2", "made for '0.0.0.0'"),
        (DECODE, "--port 9020", "made for '8006' .*nothing listens there: --server-port is the HTTP port"),
        (PREFILL, "-pcp 2", "made for '1' .*it would multiply the GPUs"),
        (PREFILL, "--enable_expert_parallel", "made without --enable-expert-parallel .*use --prefill-ep in its place"),
        (DECODE, "--enable-expert-parallel", "use --decode-ep in its place"),
        (ROUTER, "--host 127.0.0.1", "made for '0.0.0.0'"),
        (ROUTER, "--prefill http://10.0.0.9:8010", r"made for 'http://10\.0\.0\.1:8010' .*it follows from --nodes"),
        (ROUTER, "--prefill http://10.0.0.1:8010 9000", r"made for 'http://10\.0\.0\.1:8010' "),
        (ROUTER, "--decode http://10.0.0.1:8010", r"made for 'http://10\.0\.0\.2:8020' .*it follows from --nodes"),
        (ROUTER, "--worker-urls http://10.0.0.1:8010", "made without --worker-urls .*a worker is prefill or decode"),
        (ROUTER, "--backend sglang", "made for 'atom' .*it follows from --engine"),
        (ROUTER, "--tls-cert-path /c", "made without --tls-cert-path .*plain HTTP"),
        (ROUTER, "--tls-key-path /k", "made without --tls-key-path .*plain HTTP"),
        (ROUTER, "--api-key k", "made without --api-key .*probes bring no key"),
    ],
)
def test_a_flag_against_the_plan_is_refused_with_both_sides_and_what_to_do(target: str, words: str, said: str) -> None:
    message = refused(**told(target, *words.split()))
    assert message.startswith(f"{words.split()[0]} of {target} says ")
    assert "(Python --args), but the plan is " in message
    assert re.search(said, message), message


@pytest.mark.parametrize(
    ("target", "words"),
    [
        (PREFILL, "--host 0.0.0.0"),
        (PREFILL, "--host 10.0.0.1"),
        (DECODE, "--server-port 8020 --port 8006"),
        (DECODE, "--server_port 8020 --port 8020"),
        (PREFILL, "-pcp 1"),
        (PREFILL, "--max-num-seqs 8 --enforce-eager --load_dummy --chat-template /t"),
        (ROUTER, "--host 0.0.0.0 --port 30000 --prometheus-port 29100 --pd-disaggregation --backend atom"),
        (ROUTER, "--host [::]"),
        (ROUTER, "--host 10.0.0.1"),
        (ROUTER, "--prometheus-host 127.0.0.1 --policy round_robin --request-timeout-secs 9 --log-level debug"),
    ],
)
def test_what_agrees_with_the_plan_and_what_it_does_not_speak_of_is_taken(target: str, words: str) -> None:
    argv = planned(**told(target, *words.split())).process(NAMES[target]).argv
    assert set(words.split()) <= set(argv)


def test_expert_parallelism_by_hand_may_say_what_the_role_says() -> None:
    role = RoleSpec(expert_parallel=True, args=[typed("--enable-expert-parallel")])
    launch = planned(prefill=role, decode=role)
    for name in ("prefill-0", "decode-0"):
        assert launch.process(name).argv.count("--enable-expert-parallel") == 1


def test_an_ipv6_node_is_bound_as_such() -> None:
    nodes = [Node(address="fd00::1"), Node(address="fd00::2")]
    for target, own, other in ((PREFILL, "fd00::1", "::1"), (ROUTER, "[fd00::1]", "0.0.0.0")):
        fields = {"nodes": nodes}
        assert own in plan(attrs.evolve(spec(**told(target, "--host", own)), **fields), host=HOST).process(
            NAMES[target]
        ).argv  # fmt: skip
        with pytest.raises(DisaggError, match=f"--host of {target} says '{other}'"):
            plan(attrs.evolve(spec(**told(target, "--host", other)), **fields), host=HOST)


def test_a_word_for_one_process_by_name_is_held_too() -> None:
    said = refused(processes={"router": ProcessSpec(args=[typed("--prefill", "http://n9:1")])})
    assert said.startswith("--prefill of router says 'http://n9:1'")


# --- the connector's configuration -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "leaves", "said"),
    [
        (PREFILL, {"kv_role": "kv_consumer"}, "kv_role .* is 'kv_consumer' .* made for 'kv_producer'"),
        (DECODE, {"kv_role": "kv_producer"}, "kv_role .* is 'kv_producer' .* made for 'kv_consumer'"),
        (PREFILL, {"kv_connector": "moriio"}, "made for 'mooncake' .*it follows from --connector"),
        (PREFILL, {"proxy_ip": "10.0.0.9"}, r"made for '10\.0\.0\.1' .*it follows from --nodes"),
        (PREFILL, {"handshake_port": 7000}, "made for 6301 .*use --set handshake_port=7000 in its place"),
        (DECODE, {"handshake_port": 7000}, "made for 6301 .*use --set handshake_port=7000 in its place"),
        (DECODE, {"handshake-port": 6301}, "'handshake-port' .* is another key than 'handshake_port'"),
        (DECODE, {"http_port": 9000}, "http_port .* is 9000 .* made without http_port"),
        (DECODE, {"protocol": "tcp"}, "made without protocol .*use --set mooncake_protocol=tcp in its place"),
    ],
)
def test_a_key_of_the_configuration_against_the_plan_is_refused(target: str, leaves: dict[str, Any], said: str) -> None:
    message = refused(**told(target, *config(**leaves)))
    assert f"of --kv-transfer-config of {target} " in message
    assert re.search(said, message), message


def test_the_same_configuration_by_hand_is_taken_and_the_rest_is_merged() -> None:
    same = {"kv_role": "kv_producer", "kv_connector": "mooncake", "proxy_ip": "10.0.0.1", "handshake_port": 6301}
    more = {"http_port": 8010, "protocol": "rdma", "ib_device": "rdma3", "num_worker_threads": 4, "proxy_ping_port": 1}
    process = planned(**told(PREFILL, *config(**same, **more))).process("prefill-0")
    assert json.loads(value(process, "--kv-transfer-config")) == {**same, **more}


def test_a_configuration_that_is_no_object_loses_nothing_in_silence() -> None:
    for words in ("x", "[]"):
        assert "kv_role of --kv-transfer-config of prefill is not set" in refused(
            **told(PREFILL, "--kv-transfer-config", words)
        )


def test_a_device_by_hand_is_one_of_those_that_were_named() -> None:
    named = {"ib_devices": ["rdma0", "rdma1"]}
    assert "use --set ib_device=rdma7 in its place" in refused(**told(PREFILL, *config(ib_device="rdma7")), **named)
    process = planned(**told(PREFILL, *config(ib_device="rdma1")), **named).process("prefill-0")
    assert json.loads(value(process, "--kv-transfer-config"))["ib_device"] == "rdma1"
    one = {"settings": {"ib_device": "rdma0"}}
    assert "made for 'rdma0'" in refused(**told(DECODE, *config(ib_device="rdma1")), **one)
    assert "made for 'rdma0'" in refused(env={"ATOM_MOONCAKE_IB_DEVICE": "rdma1"}, **one)
    assert planned(env={"ATOM_MOONCAKE_IB_DEVICE": "rdma0"}, **one).process("decode-0")
    assert planned(env={"ATOM_MOONCAKE_IB_DEVICE": "rdma1"}).process("decode-0")


def test_both_roles_carry_kv_by_one_protocol() -> None:
    tcp = {"mooncake_protocol": "tcp"}
    assert "kv-protocol is 'tcp' for prefill-0" in refused(prefill=RoleSpec(settings=tcp))
    process = planned(settings=tcp, **told(DECODE, *config(protocol="tcp"))).process("decode-0")
    assert json.loads(value(process, "--kv-transfer-config"))["protocol"] == "tcp"
    assert "made for 'tcp'" in refused(settings=tcp, **told(DECODE, *config(protocol="rdma")))


# --- variables and ports -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("MASTER_ADDR", "10.0.0.9", "made without MASTER_ADDR"),
        ("MASTER_PORT", "29500", "made without MASTER_PORT"),
        ("RANK", "1", "made without RANK"),
        ("LOCAL_RANK", "1", "made without LOCAL_RANK"),
        ("WORLD_SIZE", "16", "made without WORLD_SIZE"),
        ("ATOM_DP_RANK", "1", "made for '0'"),
        ("ATOM_DP_RANK_LOCAL", "1", "made for '0'"),
        ("ATOM_DP_SIZE", "2", "made for '1'"),
        ("ATOM_DP_MASTER_IP", "10.0.0.1", r"made for '127\.0\.0\.1' .*a worker is on one node"),
        ("ATOM_DP_BASE_PORT", "8010", "use --set dp_base_port=8010 in its place"),
    ],
)
def test_a_variable_against_the_plan_is_refused(name: str, text: str, said: str) -> None:
    message = refused(env={name: text})
    assert message.startswith(f"{name} of prefill-0 is '{text}' (Python LaunchSpec), but the plan is ")
    assert re.search(said, message), message
    assert message.replace(f"'{text}'", "a secret").split(" (")[0] == refused(secrets=[name]).split(" (")[0]
    assert planned(router=RouterSpec(env={name: text})).process("router").env[name] == text


def test_a_variable_that_says_the_same_is_taken() -> None:
    same = {"ATOM_DP_MASTER_IP": "127.0.0.1", "ATOM_DP_SIZE": "1", "ATOM_DP_RANK": "0", "ATOM_LOG_LEVEL": "DEBUG"}
    assert planned(env=same).process("decode-0").env.items() >= same.items()
    assert "made without ATOM_DP_SIZE" in refused(env={"ATOM_DP_SIZE": "1"}, **DPA)


def test_where_dp_ranks_meet_is_a_setting_and_the_variable_may_say_the_same() -> None:
    name = "ATOM_DP_MASTER_PORT"
    assert "gives it port 29500 as 'dp_master'" in refused(env={name: "29511"}, **DPA)
    assert "says a secret " in refused(secrets=[name], **DPA)
    assert planned(env={name: "29500"}, **DPA).process("prefill-0").env[name] == "29500"
    launch = planned(settings={"dp_master_port": 29511}, **DPA)
    assert launch.process("prefill-0").env[name] == "29511"
    assert launch.process("prefill-0").ports["dp_master"] == 29511
    assert source(launch, "prefill-0", f"env/{name}") == "Python LaunchSpec"


def test_a_rendezvous_port_is_a_setting_so_that_the_port_table_knows_it() -> None:
    name = "ATOM_DP_BASE_PORT"
    process = planned(settings={"dp_base_port": 29700}, env={name: "29700"}).process("decode-0")
    assert (process.env[name], process.ports["dp_base"]) == ("29700", 29700)
    assert "dp_base" not in planned().process("decode-0").ports
    assert "8500" in refused(settings={"dp_base_port": 8500, "decode_port": 8500})
    shared = {"nodes": 1, "prefill": RoleSpec(tp=4), "decode": RoleSpec(tp=4)}
    assert "as 'dp_base'" in refused(env={name: "29700"}, **shared)


def test_an_address_that_other_nodes_cannot_reach_is_refused() -> None:
    for text in ("127.0.0.1", "::1", "localhost", "0.0.0.0"):
        said = refused(decode=RoleSpec(env={"ATOM_HOST_IP": text}))
        assert f"ATOM_HOST_IP of decode-0 is '{text}' (Python LaunchSpec), where no other node reaches" in said
    assert planned(decode=RoleSpec(env={"ATOM_HOST_IP": "192.168.9.2"})).process("decode-0")
    alone = {"nodes": 1, "prefill": RoleSpec(tp=4), "decode": RoleSpec(tp=4), "env": {"ATOM_HOST_IP": "127.0.0.1"}}
    assert planned(**alone).process("decode-0").env["ATOM_HOST_IP"] == "127.0.0.1"


# --- bounds ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--gpu-memory-utilization nan", "at least 0 and at most 1 is allowed"),
        ("--gpu-memory-utilization 9", "at least 0 and at most 1 is allowed"),
        ("--block-size=-5", "at least 1 is allowed"),
        ("--max-num-seqs 0", "at least 1 is allowed"),
        ("--max-model-len 0", "at least 1 is allowed"),
        ("--cudagraph-capture-sizes foo", "'foo' is no JSON"),
        ("--cudagraph_capture_sizes 1,2", "'1,2' is no JSON"),
    ],
)
def test_what_a_setting_would_refuse_is_refused_by_its_flag_too(words: str, said: str) -> None:
    message = refused(**told(DECODE, *words.split()))
    assert re.split("[ =]", words)[0] in message
    assert "(Python --args)" in message
    assert said in message


def test_what_a_setting_takes_is_taken_by_its_flag_too() -> None:
    words = ("--gpu-memory-utilization", "1", "--max-num-seqs", "1", "--cudagraph-capture-sizes", "[1,2]")
    assert set(words) <= set(planned(**told(DECODE, *words)).process("decode-0").argv)
