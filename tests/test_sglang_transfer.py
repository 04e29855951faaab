"""KV transfer between SGLang servers: connectors, RDMA devices, bootstrap and other ports, nodes that are shared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from disagg_run import ArgText, FlagError, Nic, NodeFacts, PortError, RoleSpec, SpecError
from disagg_run.spec.reading import read_spec
from tests.sglang_plans import CONTRACT, HOST, contract, planned, source, value

DEP: dict[str, Any] = {"dp_attention": True, "expert_parallel": True}


def nic(name: str, *, gids: Mapping[int, str] | None = None, state: str = "ACTIVE", driver: str = "ionic") -> Nic:
    return Nic(name=name, driver=driver, state=state, gids=gids or {})


def facts(*nics: Nic, **more: Any) -> dict[int, NodeFacts]:
    """The same facts for two nodes."""
    return {rank: NodeFacts(nics=nics, **more) for rank in (0, 1)}


# --- who moves KV ------------------------------------------------------------------------------------------------


def test_the_contract_names_the_connector_and_the_command_line_another() -> None:
    assert contract().connector == "sglang-mori"
    assert contract(KV_P2P_TRANSFER="mori").connector == "sglang-mori"
    launch = contract(KV_P2P_TRANSFER="mooncake")
    assert launch.connector == "sglang-mooncake"
    for name in ("prefill-0", "decode-0"):
        assert value(launch.process(name), "--disaggregation-transfer-backend") == "mooncake"
        assert not [key for key in launch.process(name).env if key.startswith("MORI_IO_")]
    options = {"connector": "sglang-mori"}
    asked = read_spec(options=options, recipe=None, environ={**CONTRACT, "KV_P2P_TRANSFER": "mooncake"}, host=HOST)
    assert asked.connector == "sglang-mori"


def test_an_unknown_kv_transfer_is_refused_with_the_nearest() -> None:
    with pytest.raises(SpecError, match=r"KV_P2P_TRANSFER: .*'mooncak'.*did you mean 'mooncake'"):
        contract(KV_P2P_TRANSFER="mooncak")


def test_one_backend_for_both_sides() -> None:
    with pytest.raises(FlagError, match=r"'nixl' .*, but the plan is made for 'mori' .*it follows from --connector"):
        planned(decode=RoleSpec(args=[ArgText(words=("--disaggregation-transfer-backend", "nixl"))]))


def test_queue_pairs_are_limited_by_the_model_against_job_scripts_but_not_against_users() -> None:
    name = "MORI_IO_QP_MAX_SEND_WR"
    asked: dict[str, Any] = {"MODEL_NAME": "DeepSeek-V4-Pro", name: "32768"}
    assert contract(**asked).process("decode-0").env[name] == "32767"
    assert "32768 was asked for by environment contract" in source(contract(**asked), "decode-0", f"env/{name}")
    assert contract(**asked | {name: "8192"}).process("decode-0").env[name] == "8192"
    launch = planned("DeepSeek-V4-Pro", settings={"mori_qp_max_send_wr": 65535})
    assert launch.process("decode-0").env[name] == "65535"
    assert contract(MORI_IO_QP_MAX_SEND_WR="32768").process("decode-0").env[name] == "32768"


# --- devices -----------------------------------------------------------------------------------------------------


def test_devices_are_those_of_each_node_that_are_up() -> None:
    found = {
        0: NodeFacts(nics=[nic("ionic_0"), nic("ionic_1", state="DOWN"), nic("ionic_2")]),
        1: NodeFacts(nics=[nic("ionic_1"), nic("ionic_3")]),
    }
    launch = planned(facts=found)
    assert value(launch.process("prefill-0"), "--disaggregation-ib-device") == "ionic_0,ionic_2"
    assert launch.process("prefill-0").env["NCCL_IB_HCA"] == "ionic_0,ionic_2"
    assert value(launch.process("decode-0"), "--disaggregation-ib-device") == "ionic_1,ionic_3"
    assert "up on this node" in source(launch, "decode-0", "argv/--disaggregation-ib-device")


def test_R27_a_node_without_a_device_is_refused() -> None:
    with pytest.raises(SpecError, match=r"rank 0 \(10\.0\.0\.1\) has no RDMA device that is up \(rdma0 is DOWN\)"):
        planned(facts=facts(nic("rdma0", state="DOWN")))
    with pytest.raises(SpecError, match=r"it has none at all.*--ib-devices.*--waive ib-devices"):
        planned(facts=facts())
    for launch in (
        planned(facts=facts(), waive=["ib-devices"]),
        planned(facts=facts(), simulate=True),
        planned(),
    ):
        for name in ("prefill-0", "decode-0"):
            assert "--disaggregation-ib-device" not in launch.process(name).argv
            assert "NCCL_IB_HCA" not in launch.process(name).env
    assert value(planned(facts=facts(), ib_devices=["rdma0"]).process("decode-0"), "--disaggregation-ib-device")


def test_B25_a_named_device_that_the_node_does_not_have_or_that_is_down_is_refused() -> None:
    found = facts(nic("mlx5_0"), nic("mlx5_1", state="DOWN"))
    with pytest.raises(SpecError, match=r"'mlx5_00' .* is not on rank 0 \(10\.0\.0\.1\).*did you mean 'mlx5_0'"):
        planned(facts=found, ib_devices=["mlx5_00"])
    with pytest.raises(SpecError, match=r"'mlx5_1' .* is DOWN on rank 0 .*it has mlx5_0, mlx5_1"):
        planned(facts=found, ib_devices=["mlx5_0", "mlx5_1"])
    for more in ({"waive": ["ib-devices"]}, {"simulate": True}):
        launch = planned(facts=found, ib_devices=["mlx5_1"], **more)
        assert value(launch.process("decode-0"), "--disaggregation-ib-device") == "mlx5_1"
    assert "mlx5_1" not in planned(facts=found).process("decode-0").env["NCCL_IB_HCA"]


def test_B75_a_name_that_others_begin_with_is_marked_exact() -> None:
    many = facts(*(nic(f"mlx5_{number}", driver="mlx5_core") for number in range(18)))
    assert planned(facts=many, ib_devices=["mlx5_1"]).process("decode-0").env["NCCL_IB_HCA"] == "=mlx5_1"
    few = facts(nic("mlx5_0"), nic("mlx5_1"))
    assert planned(facts=few, ib_devices=["mlx5_1"]).process("decode-0").env["NCCL_IB_HCA"] == "mlx5_1"


@pytest.mark.parametrize("connector", ["sglang-mori", "sglang-mooncake"])
def test_B23_where_index_0_is_link_local_a_routable_gid_is_forced(connector: str) -> None:
    bad = {0: "fe80::1", 1: "fc00::1"}
    launch = planned(facts=facts(nic("ionic_0", gids=bad), nic("ionic_1", gids=bad)), connector=connector)
    env = launch.process("prefill-0").env
    assert env["NCCL_IB_GID_INDEX"] == "1"
    assert env.get("MC_GID_INDEX") == ("1" if connector == "sglang-mooncake" else None)
    good = {**bad, 2: "::ffff:10.1.0.1"}
    assert "NCCL_IB_GID_INDEX" not in planned(facts=facts(nic("ionic_0", gids=good))).process("prefill-0").env


def test_interfaces_come_from_the_nodes_default_route_and_are_else_not_said() -> None:
    known = planned(facts=facts(nic("rdma0"), default_interface="ens3")).process("decode-0").env
    assert (known["NCCL_SOCKET_IFNAME"], known["GLOO_SOCKET_IFNAME"]) == ("ens3", "ens3")
    assert not {"NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"} & set(planned().process("decode-0").env)


def test_containers_get_the_hosts_verbs_libraries_only_for_nics_that_need_them() -> None:
    def mounts(driver: str) -> list[str]:
        launch = planned(facts=facts(nic("rdma0", driver=driver)), image="sglang:v0.5.12")
        container = launch.ranks[0].groups[0].container
        assert container is not None
        return [mount.source for mount in container.needs.mounts]

    assert "/usr/lib/x86_64-linux-gnu/libionic.so.1" in mounts("ionic_rdma")
    assert "/usr/lib/x86_64-linux-gnu/libbnxt_re.so" in mounts("bnxt_re")
    assert mounts("mlx5_core") == ["/models/DeepSeek-R1-0528"]


def test_preflight_asks_for_the_model_the_driver_and_the_devices() -> None:
    checks = planned(ib_devices=["rdma3"]).ranks[1].groups[0].preflight
    asked = {(check.name, check.target) for check in checks}
    assert asked >= {
        ("model", "/models/DeepSeek-R1-0528"),
        ("gpu-driver", "/dev/kfd"),
        ("ib-devices", "/sys/class/infiniband/rdma3"),
    }


# --- bootstrap ---------------------------------------------------------------------------------------------------


def test_B06_all_nodes_of_a_prefill_worker_and_decode_have_one_bootstrap_port() -> None:
    launch = planned(nodes=3, prefill=RoleSpec(tp=16))
    ports = {
        name: value(launch.process(name), "--disaggregation-bootstrap-port")
        for name in ("prefill-0", "prefill-0.1", "decode-0")
    }
    assert set(ports.values()) == {"8998"}
    assert launch.process("prefill-0").ports["bootstrap"] == 8998
    for name in ("prefill-0.1", "decode-0"):
        assert "bootstrap" not in launch.process(name).ports
    moved = planned(nodes=3, prefill=RoleSpec(tp=16), settings={"bootstrap_port": 9100})
    for name in ("prefill-0", "prefill-0.1", "decode-0"):
        assert value(moved.process(name), "--disaggregation-bootstrap-port") == "9100"


def test_two_prefill_workers_of_a_node_have_bootstrap_ports_that_the_router_knows() -> None:
    launch = planned(prefill=RoleSpec(workers=2, tp=4), pack=True)
    assert [launch.process(name).ports["bootstrap"] for name in ("prefill-0", "prefill-1")] == [8998, 8999]
    argv = launch.process("router").argv
    found = [argv[at + 1 : at + 3] for at, word in enumerate(argv) if word == "--prefill"]
    assert found == [("http://10.0.0.1:8000", "8998"), ("http://10.0.0.1:8001", "8999")]
    assert value(launch.process("prefill-1"), "--disaggregation-bootstrap-port") == "8999"


def test_the_default_bootstrap_port_is_not_said() -> None:
    launch = planned()
    for rank in launch.ranks:
        for process in rank.processes():
            assert "--disaggregation-bootstrap-port" not in process.argv
    assert launch.process("router").argv[-4:] == (
        "--prefill",
        "http://10.0.0.1:8000",
        "--decode",
        "http://10.0.0.2:8000",
    )


# --- other ports -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("version", "count"), [("0.5.9", 6), ("0.5.12", 6), ("0.5.14", 7), ("0.5.23", 7)])
def test_dp_attention_reserves_the_ports_that_are_derived_from_http(version: str, count: int) -> None:
    sides: dict[str, Any] = {"prefill": RoleSpec(dp_attention=True), "decode": RoleSpec(dp_attention=True)}
    process = planned(engine_version=version, **sides).process("decode-0")
    assert process.ports == {"http": 8000, "dp": 8233, "dp_broadcast": 8013}
    assert process.port_counts == {"dp": count}


def test_B01_workers_of_one_node_have_blocks_of_their_own() -> None:
    worker = RoleSpec(workers=2, tp=4, dp_attention=True)
    launch = planned(prefill=worker, decode=RoleSpec(tp=8, dp_attention=True), pack=True)
    first, second = launch.process("prefill-0"), launch.process("prefill-1")
    for process in (first, second):
        assert process.ports["dp"] == process.ports["http"] + 233
        assert process.ports["dp_broadcast"] == process.ports["http"] + 13
        assert value(process, "--port") == str(process.ports["http"])
    block = set(range(first.ports["http"], first.ports["dp"] + 7))
    assert second.ports["http"] not in block


def test_a_worker_over_two_nodes_meets_on_its_head() -> None:
    launch = planned(nodes=3, decode=RoleSpec(tp=16, **DEP), prefill=RoleSpec(**DEP))
    head, follower = launch.process("decode-0"), launch.process("decode-0.1")
    for rank, process in enumerate((head, follower)):
        assert value(process, "--dist-init-addr") == "10.0.0.2:20000"
        assert (value(process, "--nnodes"), value(process, "--node-rank")) == ("2", str(rank))
        assert value(process, "--tp-size") == value(process, "--ep-size") == "16"
    assert head.ports == {"http": 8000, "dist_init": 20000, "dp_broadcast": 20013}
    assert head.port_counts == {"dist_init": 7}
    assert follower.ports == {"http": 8000}
    assert follower.ready == ()
    assert [(edge.process, edge.until) for edge in follower.after] == [("decode-0", "started")]


def test_B13_the_router_and_its_gate_have_exactly_the_heads() -> None:
    launch = planned(nodes=5, prefill=RoleSpec(workers=2, **DEP), decode=RoleSpec(tp=16, **DEP))
    router = launch.process("router")
    assert {edge.process for edge in router.after} == {"prefill-0", "prefill-1", "decode-0"}
    assert router.argv.count("--prefill") == 2
    assert router.argv.count("--decode") == 1
    assert value(router, "--decode") == "http://10.0.0.3:8000"
    assert [proof.kind for proof in router.ready] == ["http", "generation"]
    assert router.ready[0].target == "http://10.0.0.1:30000/readiness"


def test_addresses_of_ipv6_are_in_brackets_where_a_port_follows() -> None:
    launch = planned(nodes=3, network="fd00::{}", prefill=RoleSpec(tp=16))
    assert value(launch.process("prefill-0.1"), "--dist-init-addr") == "[fd00::1]:20000"
    assert value(launch.process("prefill-0"), "--host") == "::"
    router = launch.process("router")
    assert router.argv[-4:] == ("--prefill", "http://[fd00::1]:8000", "--decode", "http://[fd00::3]:8000")
    # As sglang-router 0.3.2 was seen to take it; it ends with "invalid socket address syntax" for "::".
    assert value(router, "--host") == "[::]"


def test_a_fixed_port_that_is_taken_is_refused() -> None:
    with pytest.raises(PortError, match="8000"):
        planned(prefill=RoleSpec(workers=2, tp=4), pack=True, settings={"server_port": 8000})


def test_on_nvidia_gpus_nothing_of_amd_s_libraries_is_said() -> None:
    found = facts(nic("mlx5_0", driver="mlx5_core"), gpu_vendor="nvidia")
    with pytest.raises(SpecError, match=r"sglang-mori is for AMD GPUs, but rank 0 .* has NVIDIA GPUs.*sglang-mooncake"):
        planned(facts=found)
    role = RoleSpec(**DEP)
    launch = planned("DeepSeek-V4-Pro", facts=found, connector="sglang-mooncake", prefill=role, decode=role)
    assert [remark.message.split(":")[0] for remark in launch.warnings] == [
        "the values of 'DeepSeek-V4-Pro' are for AMD GPUs"
    ]
    for name in ("prefill-0", "decode-0"):
        process = launch.process(name)
        assert not {"--attention-backend", "--moe-a2a-backend", "--deepep-mode"} & set(process.argv)
        assert value(process, "--ep-size") == "8"
        assert not [key for key in process.env if "AITER" in key or "MORI" in key or "ROCM" in key]
        assert not process.env_prepend


def test_B94_servers_of_one_node_see_their_own_gpus_by_one_variable() -> None:
    worker = RoleSpec(workers=2, tp=4)
    amd = planned(prefill=worker, pack=True).process("prefill-1")
    assert amd.env["HIP_VISIBLE_DEVICES"] == "4,5,6,7"
    assert "CUDA_VISIBLE_DEVICES" in amd.unset
    shared = facts(nic("mlx5_0", driver="mlx5_core"), gpu_vendor="nvidia")
    nvidia = planned(prefill=worker, pack=True, facts=shared, connector="sglang-mooncake").process("prefill-1")
    assert nvidia.env["CUDA_VISIBLE_DEVICES"] == "4,5,6,7"
    assert "HIP_VISIBLE_DEVICES" in nvidia.unset
    alone = planned().process("prefill-0")
    assert not {"HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"} & {*alone.env, *alone.unset}
