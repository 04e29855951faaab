"""The ATOM plugin's KV transfer: addresses, GIDs, ports, servers that share a node."""

from __future__ import annotations

import json

import pytest

from disagg_atom import connector_mooncake
from disagg_run import NodeFacts, PortError, RoleSpec
from disagg_run.roles import dp_ranks
from tests.atom_plans import contract, nic, planned, two_on_a_node
from tests.plan_values import source, value


def test_B19_every_server_is_told_its_own_address() -> None:
    launch = planned(nodes=3, prefill=RoleSpec(workers=2))
    found = {name: launch.process(name).env["ATOM_HOST_IP"] for name in ("prefill-0", "prefill-1", "decode-0")}
    assert found == {"prefill-0": "10.0.0.1", "prefill-1": "10.0.0.2", "decode-0": "10.0.0.3"}
    assert "ATOM_HOST_IP" not in launch.process("router").env


def test_B26_the_data_address_is_that_of_the_chosen_device() -> None:
    facts = {rank: NodeFacts(nics=[nic("ionic_0", f"192.168.10.{rank}"), nic("ionic_1", "fd00::1")]) for rank in (0, 1)}
    launch = planned(facts=facts, ib_devices=["ionic_0", "ionic_1"])
    decode = launch.process("decode-0")
    assert decode.env["ATOM_HOST_IP"] == "192.168.10.1"
    assert json.loads(value(decode, "--kv-transfer-config"))["proxy_ip"] == "10.0.0.2"
    assert [proof.target for proof in decode.ready] == ["http://10.0.0.2:8020/health"]
    assert source(launch, "decode-0", "env/ATOM_HOST_IP").endswith("address of net_ionic_0 behind ionic_0")
    chosen = planned(facts=facts, settings={"ib_device": "ionic_1"}).process("decode-0")
    assert chosen.env["ATOM_HOST_IP"] == "fd00::1"
    assert json.loads(value(chosen, "--kv-transfer-config"))["ib_device"] == "ionic_1"
    assert planned(facts=facts).process("decode-0").env["ATOM_HOST_IP"] == "10.0.0.2"


def test_no_device_is_no_error_and_nothing_is_written_of_one() -> None:
    """Fault R27: after a failed detection an empty list of devices was passed on; ATOM takes none and finds its own."""
    for facts in (NodeFacts(), NodeFacts(nics=[nic("ionic_0", state="DOWN")])):
        launch = planned(facts={0: facts, 1: facts})
        for name in ("prefill-0", "decode-0"):
            process = launch.process(name)
            assert "ib_device" not in json.loads(value(process, "--kv-transfer-config"))
            assert "" not in {*process.argv, *process.env.values()}
    assert [each.message for each in launch.warnings] == [
        "no RDMA device is up on rank 0 (10.0.0.1): ionic_0 is DOWN",
        "no RDMA device is up on rank 1 (10.0.0.2): ionic_0 is DOWN",
    ]


def test_B25_a_named_device_that_is_known_to_be_down_or_absent_is_remarked_on() -> None:
    facts = {1: NodeFacts(nics=[nic("ionic_0"), nic("ionic_1", state="DOWN")])}
    (warning,) = planned(facts=facts, ib_devices=["ionic_0", "ionic_1"]).warnings
    assert warning.message.startswith("RDMA device 'ionic_1' (")
    assert warning.message.endswith(") is not up on rank 1 (10.0.0.2): ionic_0 is ACTIVE, ionic_1 is DOWN")
    (warning,) = planned(facts=facts, settings={"ib_device": "rdma0"}).warnings
    assert "'rdma0'" in warning.message
    assert planned(facts=facts, ib_devices=["ionic_0"]).warnings == ()
    assert planned(ib_devices=["rdma0"]).warnings == ()


def test_B23_a_routable_gid_is_chosen_where_the_automatic_one_is_link_local() -> None:
    gids = {0: "fe80:0000:0000:0000:0690:81ff:fe00:0001", 1: "fd93:16d3:59b6:0000:0000:0000:0000:0001"}
    nics = [nic("ionic_0", gids=gids), nic("ionic_1", gids=gids), nic("ionic_2", state="DOWN")]
    launch = planned(facts={0: NodeFacts(nics=nics)})
    env = launch.process("prefill-0").env
    assert {name: env[name] for name in connector_mooncake.GID_VARIABLES} == {
        "MC_GID_INDEX": "1",
        "NCCL_IB_GID_INDEX": "1",
        "UCX_IB_GID_INDEX": "1",
    }
    assert "routable on ionic_0, ionic_1" in source(launch, "prefill-0", "env/MC_GID_INDEX")
    assert "MC_GID_INDEX" not in launch.process("decode-0").env


def test_servers_on_one_node_have_gpus_and_ports_of_their_own() -> None:
    launch = two_on_a_node()
    prefill, decode = launch.process("prefill-0"), launch.process("decode-0")
    assert prefill.env["HIP_VISIBLE_DEVICES"] == "0,1,2,3"
    assert decode.env["HIP_VISIBLE_DEVICES"] == "4,5,6,7"
    for process in (prefill, decode):
        assert "CUDA_VISIBLE_DEVICES" in process.unset
        assert process.env["ATOM_DP_MASTER_PORT"] == str(process.ports["dp_master"])
        assert process.env["ATOM_DP_BASE_PORT"] == str(process.ports["dp_base"])
    for name in ("dp_master", "dp_base", "http"):
        assert prefill.ports[name] != decode.ports[name]
    assert prefill.port_counts["dp_base"] == 4


def test_a_server_with_a_node_of_its_own_sees_all_of_it() -> None:
    process = planned(prefill=RoleSpec(tp=4), decode=RoleSpec(tp=4)).process("decode-0")
    assert not {"HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "ATOM_DP_BASE_PORT", "ATOM_DP_MASTER_PORT"} & {
        *process.env,
        *process.unset,
    }


def test_two_prefill_workers_of_a_node_have_handshake_ports_apart_and_the_router_finds_both() -> None:
    launch = planned(nodes=2, pack=True, prefill=RoleSpec(workers=2, tp=4), decode=RoleSpec(tp=4))
    first, second = launch.process("prefill-0"), launch.process("prefill-1")
    assert first.ports["handshake"] + first.port_counts["handshake"] <= second.ports["handshake"]
    config = json.loads(value(second, "--kv-transfer-config"))
    assert config["handshake_port"] == second.ports["handshake"]
    argv = launch.process("router").argv
    urls = {argv[index + 1] for index, word in enumerate(argv) if word == "--prefill"}
    assert urls == {f"http://10.0.0.1:{each.ports['http']}" for each in (first, second)}
    assert f"{8010} is taken on this node" in source(launch, "prefill-1", "argv/--server-port")


def test_only_prefill_listens_for_handshakes_and_a_fixed_port_reaches_both() -> None:
    launch = contract(HANDSHAKE_PORT="7000")
    assert launch.process("prefill-0").ports["handshake"] == 7000
    assert launch.process("prefill-0").port_counts["handshake"] == 8
    assert "handshake" not in launch.process("decode-0").ports
    for name in ("prefill-0", "decode-0"):
        assert json.loads(value(launch.process(name), "--kv-transfer-config"))["handshake_port"] == 7000
        said = source(launch, name, "argv/--kv-transfer-config/handshake_port")
        assert said == "environment contract HANDSHAKE_PORT"


@pytest.mark.parametrize(
    ("role", "ranks"),
    [
        (RoleSpec(tp=8), 1),
        (RoleSpec(tp=8, dp_attention=True), 8),
        (RoleSpec(tp=2, dp=4), 4),
        (RoleSpec(tp=4, dp=2, dp_attention=True), 8),
    ],
)
def test_dp_ranks_meet_on_a_port_only_where_there_are_some(role: RoleSpec, ranks: int) -> None:
    assert dp_ranks(role) == ranks
    process = planned(prefill=role, decode=role).process("prefill-0")
    assert process.port_counts["handshake"] == 8
    assert process.ports.get("dp_master") == (29500 if ranks > 1 else None)
    assert ("-dp" in process.argv) == (role.dp > 1)


def test_fixed_ports_stand_and_a_clash_of_two_is_refused() -> None:
    launch = contract(PREFILL_PORT="9000", DECODE_PORT="9001")
    assert [value(launch.process(name), "--server-port") for name in ("prefill-0", "decode-0")] == ["9000", "9001"]
    assert source(launch, "prefill-0", "argv/--server-port") == "environment contract PREFILL_PORT"
    with pytest.raises(PortError, match=r"9000"):
        two_on_a_node(settings={"prefill_port": 9000, "decode_port": 9000})
