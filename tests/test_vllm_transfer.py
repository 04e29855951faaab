"""MoRI-IO between vLLM servers: what it is told by release, the router that servers come to, ports and sizes."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from disagg_run import (
    ArgText,
    LaunchPlan,
    LaunchSpec,
    Node,
    NodeFacts,
    ParityError,
    PortError,
    ProcessSpec,
    RoleSpec,
    SpecError,
    TopologyError,
    plan,
)
from disagg_run.spec.reading import read_spec
from disagg_vllm import connector_moriio, connector_nixl
from tests.vllm_plans import (
    HOST,
    KIMI,
    M3,
    M25,
    check_sizes,
    contract,
    nic,
    planned,
    source,
    spec,
    transfer,
    value,
    warnings,
)

EXTRA = "kv_connector_extra_config"
READ_MODE = "VLLM_MORIIO_CONNECTOR_READ_MODE"

# --- MoRI-IO: keys and variables by release ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "keys"), [("0.20.0", False), ("0.22.1", False), ("0.23.0", True), ("0.32.0", True)]
)
def test_tuning_stands_where_the_release_reads_it_and_nowhere_else(version: str, keys: bool) -> None:
    asked = {"read_mode": False, "qp_per_transfer": 2, "post_batch_size": -1, "num_workers": 3}
    launch = planned(engine_version=version, settings=asked)
    for name in ("prefill-0", "decode-0"):
        process = launch.process(name)
        config = transfer(process)
        assert {key: config[key] for key in asked if key in config} == (asked if keys else {})
        variables = {key: text for key, text in process.env.items() if key.startswith("VLLM_MORIIO_")}
        assert variables == (
            {}
            if keys
            else {
                READ_MODE: "0",
                "VLLM_MORIIO_QP_PER_TRANSFER": "2",
                "VLLM_MORIIO_POST_BATCH_SIZE": "-1",
                "VLLM_MORIIO_NUM_WORKERS": "3",
            }
        )


def test_decode_reads_unless_the_user_says_otherwise() -> None:
    assert transfer(planned().process("decode-0"))["read_mode"] is True
    launch = contract(VLLM_MORIIO_CONNECTOR_READ_MODE="0")
    assert transfer(launch.process("decode-0"))["read_mode"] is False
    key = "argv/--kv-transfer-config/kv_connector_extra_config.read_mode"
    assert source(launch, "decode-0", key) == f"environment contract {READ_MODE}"
    assert source(planned(), "decode-0", key) == "connector (plugin vllm-moriio)"


@pytest.mark.parametrize("version", ["0.21.0", "0.32.0"])
def test_prefill_and_decode_have_one_transfer_mode(version: str) -> None:
    with pytest.raises(ParityError, match="transfer-mode"):
        planned(engine_version=version, decode=RoleSpec(settings={"read_mode": False}))


def test_a_backend_is_named_only_to_releases_that_read_it() -> None:
    launch = planned(settings={"moriio_backend": "xgmi"})
    assert transfer(launch.process("prefill-0"))["backend"] == "xgmi"
    assert "backend" not in transfer(planned().process("prefill-0"))
    with pytest.raises(SpecError, match=r"moriio_backend is set .*0\.21\.0 does not read it"):
        planned(engine_version="0.21.0", settings={"moriio_backend": "xgmi"})


def test_queues_are_the_public_ones_unless_the_user_sets_them() -> None:
    env = contract(MORI_IO_QP_MAX_SEND_WR="", MORI_RDMA_TC="104").process("decode-0").env
    assert (env["MORI_IO_QP_MAX_SEND_WR"], env["MORI_IO_SQ_BACKOFF_TIMEOUT_US"], env["MORI_RDMA_TC"]) == (
        "16384",
        "50000",
        "104",
    )
    launch = contract(MORI_IO_QP_MAX_SEND_WR="4096")
    assert launch.process("decode-0").env["MORI_IO_QP_MAX_SEND_WR"] == "4096"
    assert source(launch, "decode-0", "env/MORI_IO_QP_MAX_SEND_WR") == "environment contract MORI_IO_QP_MAX_SEND_WR"
    assert "MORI_RDMA_TC" not in planned().process("decode-0").env


def test_B41_an_override_keeps_what_the_launcher_depends_on() -> None:
    launch = contract(
        EXTRA_SERVER_ARGS="""--kv-transfer-config '{"kv_connector_extra_config": {"transfer_timeout": 40}}'"""
    )
    config = transfer(launch.process("decode-0"))
    assert (config["transfer_timeout"], config["kv_role"], config["proxy_ip"]) == (40, "kv_consumer", "10.0.0.1")


# --- MoRI-IO: the router that servers come to --------------------------------------------------------------------


def test_servers_register_where_the_router_listens() -> None:
    for launch, port in ((contract(), "36367"), (contract(PROXY_PING_PORT="37000"), "37000")):
        router = launch.process("router")
        assert value(router, "--vllm-discovery-address") == f"0.0.0.0:{port}"
        assert value(router, "--kv-connector") == "moriio"
        assert not {"--prefill", "--decode"} & set(router.argv)
        for name in ("prefill-0", "decode-0"):
            config = transfer(launch.process(name))
            assert (config["proxy_ip"], config["proxy_ping_port"]) == ("10.0.0.1", port)
            assert config["http_port"] == "2584"


def test_a_moved_discovery_port_reaches_every_server() -> None:
    facts = {0: NodeFacts(listening_ports=[36367], nics=[nic("rdma0")])}
    launch = planned(facts=facts)
    port = str(launch.process("router").ports["discovery"])
    assert port != "36367"
    assert value(launch.process("router"), "--vllm-discovery-address") == f"0.0.0.0:{port}"
    assert transfer(launch.process("decode-0"))["proxy_ping_port"] == port


def test_servers_can_register_with_a_router_that_somebody_else_starts() -> None:
    external = attrs.evolve(LaunchSpec(engine="", model="").router, mode="external")
    config = transfer(planned(router=external).process("decode-0"))
    assert (config["proxy_ip"], config["proxy_ping_port"]) == ("10.0.0.1", "36367")
    config = transfer(
        planned(router=external, settings={"router_address": "10.0.9.9", "discovery_port": 4000}).process("decode-0")
    )
    assert (config["proxy_ip"], config["proxy_ping_port"]) == ("10.0.9.9", "4000")


def test_the_router_s_health_and_a_generation_prove_it_for_its_models_path_never_answers() -> None:
    for connector in ("vllm-moriio", "vllm-nixl"):
        ready = planned(connector=connector).process("router").ready
        assert [(each.kind, each.target) for each in ready if each.kind != "output"] == [
            ("http", "http://10.0.0.1:30000/health"),
            ("generation", "http://10.0.0.1:30000/v1/completions"),
        ]
        assert not [each for each in ready if "served_model" in each.identity]


def printed(launch: LaunchPlan) -> list[str]:
    return [each.target for each in launch.process("router").ready if each.kind == "output"]


def test_B13_the_router_is_ready_when_it_has_named_every_head_once() -> None:
    sides: dict[str, Any] = {
        "prefill": RoleSpec(workers=2, tp=8, dp_attention=True),
        "decode": RoleSpec(workers=2, tp=16),
    }
    launch = planned(nodes=6, waive=["kv-reach"], **sides)
    assert printed(launch) == [
        "Add Prefill [HTTP:10.0.0.1:2584,",
        "Add Prefill [HTTP:10.0.0.2:2584,",
        "Add Decode [HTTP:10.0.0.3:2584,",
        "Add Decode [HTTP:10.0.0.5:2584,",
    ]
    for process in (each for rank in launch.ranks for each in rank.processes() if each.kind == "server"):
        assert process.env["VLLM_HOST_IP"] in {"10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.5", "10.0.0.6"}
    # A router that is told its workers answers when it has seen them all healthy.
    assert printed(planned(connector="vllm-nixl")) == []


@pytest.mark.parametrize(
    "fields",
    [
        {"waive": ["registrations"]},
        {"engine_version": "0.19.1"},
        {"router": {"version": "0.1.5"}},
        {"router": {"image": "other:y"}},
        {"router": {"args": [ArgText(words=("--log-level", "error"))]}},
        {"processes": {"router": ProcessSpec(args=[ArgText(words=("--log-level", "error"))])}},
        {"router": {"env": {"RUST_LOG": "error"}}},
        {"processes": {"router": ProcessSpec(env={"RUST_LOG": "error"})}},
        {"processes": {"decode-0": ProcessSpec(env={"VLLM_HOST_IP": "10.9.0.1"})}},
        {"decode": RoleSpec(env={"VLLM_HOST_IP": "10.9.0.1"})},
        {"decode": RoleSpec(args=[ArgText(words=(f"--kv-transfer-config.{EXTRA}.host_ip", "10.9.0.1"))])},
    ],
)
def test_nobody_waits_for_words_that_the_router_may_not_print(fields: dict[str, Any]) -> None:
    if "router" in fields:
        fields = {"router": attrs.evolve(LaunchSpec(engine="", model="").router, **fields["router"])}
    assert printed(planned(**fields)) == []


def test_hosts_that_are_given_by_name_register_at_addresses_that_are_not_known() -> None:
    asked = read_spec(
        options={"engine": "vllm-disagg", "model": KIMI, "nodes": "n0,n1"}, recipe=None, environ={}, host=HOST
    )
    launch = plan(asked, host=HOST)
    assert printed(launch) == []
    assert "VLLM_HOST_IP" not in launch.process("decode-0").env
    assert transfer(launch.process("decode-0"))["proxy_ip"] == "n0"


def test_B95_an_engine_that_the_router_does_not_understand_is_a_warning() -> None:
    assert any("0.19.1 registers" in text for text in warnings(planned(engine_version="0.19.1")))
    assert not any("registers" in text for text in warnings(planned(engine_version="0.20.0")))
    old = attrs.evolve(LaunchSpec(engine="", model="").router, version="0.1.5")
    assert not any("registers" in text for text in warnings(planned(engine_version="0.19.1", router=old)))


# --- MoRI-IO: ports and sizes ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("role", "count"), [(RoleSpec(tp=8), 8), (RoleSpec(tp=8, dp_attention=True), 8), (RoleSpec(tp=1), 1)]
)
def test_both_roles_listen_for_each_rank(role: RoleSpec, count: int) -> None:
    launch = planned(prefill=role, decode=role)
    for name in ("prefill-0", "decode-0"):
        process = launch.process(name)
        assert (process.ports["handshake"], process.ports["notify"]) == (6301, 61005)
        assert {process.port_counts.get("handshake", 1), process.port_counts.get("notify", 1)} == {count}
        assert not {"handshake_port", "notify_port"} & set(transfer(process))


def test_ports_that_moved_or_were_fixed_are_told() -> None:
    launch = planned(nodes=1, prefill=RoleSpec(tp=4), decode=RoleSpec(tp=4))
    decode = launch.process("decode-0")
    config = transfer(decode)
    assert (config["handshake_port"], config["notify_port"]) == (
        str(decode.ports["handshake"]),
        str(decode.ports["notify"]),
    )
    assert decode.ports["handshake"] >= 6301 + 4
    fixed = planned(settings={"handshake_port": 7000, "notify_port": 7100})
    for name in ("prefill-0", "decode-0"):
        assert (transfer(fixed.process(name))["handshake_port"], fixed.process(name).ports["notify"]) == ("7000", 7100)
    words = """--kv-transfer-config '{"kv_connector_extra_config": {"handshake_port": "9"}}'"""
    with pytest.raises(PortError, match=r"--kv-transfer-config of prefill-0 says '9'"):
        contract(EXTRA_SERVER_ARGS=words)


def test_ranks_that_would_take_each_other_s_ports_are_refused() -> None:
    with pytest.raises(TopologyError, match=r"2 data-parallel ranks of 4 GPUs each share MoRI-IO's .* vllm-nixl"):
        planned(prefill=RoleSpec(tp=4, dp=2))
    assert planned(connector="vllm-nixl", prefill=RoleSpec(tp=4, dp=2), decode=RoleSpec(tp=8))


def test_data_parallel_ranks_over_nodes_are_refused_for_a_router_that_cannot_reach_them() -> None:
    side = RoleSpec(tp=16, dp_attention=True)
    with pytest.raises(TopologyError, match=r"lie on 2 nodes, and vllm-router reaches only those of the first"):
        planned(nodes=4, prefill=side, decode=side)


def test_a_worker_over_nodes_is_refused_since_moriio_does_not_reach_its_kv() -> None:
    sides: dict[str, Any] = {"nodes": 4, "prefill": RoleSpec(tp=16), "decode": RoleSpec(tp=16)}
    with pytest.raises(TopologyError, match=r"a prefill worker lies on 2 nodes.*--waive kv-reach"):
        planned(**sides)
    launch = planned(waive=["kv-reach"], **sides)
    assert [each.source for each in launch.waived] == ["kv-reach"]
    head, follower = launch.process("decode-0"), launch.process("decode-0.1")
    assert head.ports["handshake"] == follower.ports["handshake"]
    assert transfer(head) == transfer(follower)
    assert warnings(planned(connector="vllm-nixl", **sides)) == []


def test_addresses_at_which_moriio_cannot_register_are_refused() -> None:
    asked = attrs.evolve(spec(), nodes=[Node(address=f"fd00::{number}") for number in (1, 2)])
    with pytest.raises(TopologyError, match=r"prefill-0 has the IPv6 address 'fd00::1' .*IPv4.*--waive kv-reach"):
        plan(asked, host=HOST)
    assert plan(attrs.evolve(asked, waive=["kv-reach"]), host=HOST).waived
    assert not plan(attrs.evolve(asked, connector="vllm-nixl"), host=HOST).waived


@pytest.mark.parametrize(
    ("model", "version", "prefill", "decode", "problem"),
    [
        (KIMI, "0.25.0", 8, 8, ""),
        (KIMI, "0.25.0", 4, 8, "equal sizes only"),
        (KIMI, "0.26.0", 4, 8, ""),
        (KIMI, "0.32.0", 8, 2, ""),
        (KIMI, "0.32.0", 6, 8, "multiple"),
        (M25, "0.32.0", 4, 8, "none of the model's 8 KV heads"),
        (M25, "0.32.0", 8, 16, ""),
        (M3, "0.32.0", 4, 8, "it is not known"),
    ],
)
def test_B61_unequal_sizes_are_refused_where_moriio_cannot_move_kv(
    model: str, version: str, prefill: int, decode: int, problem: str
) -> None:
    check_sizes(model, prefill, decode, problem, engine_version=version)


def test_the_connectors_say_nothing_of_each_other() -> None:
    assert connector_moriio.NAME != connector_nixl.NAME
    nixl = planned(connector="vllm-nixl").process("decode-0")
    assert not [name for name in nixl.env if name.startswith("MORI")]
    assert transfer(nixl) == {"kv_connector": "NixlConnector", "kv_role": "kv_consumer"}
    assert contract(KV_P2P_TRANSFER="nixl").connector == "vllm-nixl"
