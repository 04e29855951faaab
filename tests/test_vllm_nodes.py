"""The vLLM plugin: what its servers have of a node, addresses, ports, GPUs, containers, and what proves them ready."""

from __future__ import annotations

from typing import Any

import pytest

from disagg_run import NodeFacts, PortError, RoleSpec, SpecError, plan
from disagg_run.simulation.offline import OFFLINE
from disagg_run.spec.reading import read_spec
from tests.parity.case import load
from tests.vllm_plans import HOST, KIMI, contract, nic, planned, source, transfer, value, warnings

# --- addresses, ports, shared nodes ------------------------------------------------------------------------------


def test_the_addresses_and_interfaces_of_a_node_are_its_own() -> None:
    facts = {0: NodeFacts(default_interface="eth7", nics=[nic("rdma0"), nic("rdma1", state="DOWN"), nic("rdma2")])}
    launch = planned(facts=facts)
    env = launch.process("prefill-0").env
    assert env["VLLM_HOST_IP"] == "10.0.0.1"
    assert (env["NCCL_SOCKET_IFNAME"], env["GLOO_SOCKET_IFNAME"]) == ("eth7", "eth7")
    assert (env["NCCL_IB_HCA"], env["UCX_NET_DEVICES"]) == ("rdma0,rdma2", "rdma0:1")
    other = launch.process("decode-0").env
    assert other["VLLM_HOST_IP"] == "10.0.0.2"
    assert not {"NCCL_SOCKET_IFNAME", "NCCL_IB_HCA", "UCX_NET_DEVICES"} & set(other)


def test_R19_path_variables_gain_whole_elements_in_their_order() -> None:
    process = planned().process("prefill-0")
    assert not {"PATH", "LD_LIBRARY_PATH", "PYTHONPATH"} & {*process.env, *process.env_append}
    assert process.env_prepend["PATH"] == ("/usr/local/ucx/bin", "/usr/local/bin/etcd", "/root/.cargo/bin")
    assert process.env_prepend["LD_LIBRARY_PATH"][0] == "/usr/local/ucx/lib"
    assert all(part and ":" not in part for parts in process.env_prepend.values() for part in parts)


def test_servers_on_one_node_have_gpus_and_ports_of_their_own() -> None:
    launch = planned(nodes=1, prefill=RoleSpec(tp=4), decode=RoleSpec(tp=4))
    prefill, decode = launch.process("prefill-0"), launch.process("decode-0")
    assert (prefill.env["HIP_VISIBLE_DEVICES"], decode.env["HIP_VISIBLE_DEVICES"]) == ("0,1,2,3", "4,5,6,7")
    for process in (prefill, decode):
        assert "CUDA_VISIBLE_DEVICES" in process.unset
        assert value(process, "--port") == transfer(process)["http_port"] == str(process.ports["http"])
    for name in ("http", "handshake", "notify"):
        assert prefill.ports[name] != decode.ports[name]
    assert "2584 is taken on this node" in source(launch, "decode-0", "argv/--port")


def test_on_nvidia_gpus_the_other_variable_is_set_and_nothing_of_rocm() -> None:
    facts = {rank: NodeFacts(gpu_vendor="nvidia") for rank in (0, 1)}
    launch = planned(nodes=1, connector="vllm-nixl", facts=facts, prefill=RoleSpec(tp=4), decode=RoleSpec(tp=4))
    decode = launch.process("decode-0")
    assert decode.env["CUDA_VISIBLE_DEVICES"] == "4,5,6,7"
    assert "HIP_VISIBLE_DEVICES" in decode.unset
    assert not {"ROCM_PATH", "HSA_ENABLE_SDMA", "UCX_TLS"} & set(decode.env)
    assert "--all2all-backend" not in decode.argv
    m3 = planned("MiniMax-M3-MXFP4", connector="vllm-nixl", facts=facts, decode=RoleSpec(tp=8))
    assert any("are for AMD GPUs" in message for message in warnings(m3))
    assert "--moe-backend" not in m3.process("prefill-0").argv


def test_a_server_with_a_node_of_its_own_sees_all_of_it() -> None:
    process = planned(prefill=RoleSpec(tp=4), decode=RoleSpec(tp=4)).process("decode-0")
    assert not {"HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "VLLM_PORT"} & {*process.env, *process.unset}


def test_B03_each_server_of_a_node_searches_ports_in_a_window_of_its_own() -> None:
    roles: dict[str, Any] = {"prefill": RoleSpec(workers=4, tp=2), "decode": RoleSpec(tp=8)}
    launch = planned(nodes=4, gpus_per_node=4, connector="vllm-nixl", waive=["attention-tp"], **roles)
    windows: dict[str, list[tuple[int, int]]] = {}
    for rank in launch.ranks:
        for process in rank.processes():
            if "window" in process.ports:
                assert process.env["VLLM_PORT"] == str(process.ports["window"])
                first = process.ports["window"]
                windows.setdefault(rank.node.address, []).append((first, first + process.port_counts["window"]))
    assert windows
    for runs in windows.values():
        assert all(before[1] <= after[0] for before, after in zip(sorted(runs), sorted(runs)[1:], strict=False))


def test_fixed_ports_stand_and_a_clash_of_two_is_refused() -> None:
    launch = contract(SERVER_PORT="2600")
    assert [value(launch.process(name), "--port") for name in ("prefill-0", "decode-0")] == ["2600", "2600"]
    assert source(launch, "prefill-0", "argv/--port") == "environment contract SERVER_PORT"
    with pytest.raises(PortError, match=r"2600"):
        planned(nodes=1, prefill=RoleSpec(tp=4), decode=RoleSpec(tp=4), settings={"server_port": 2600})
    with pytest.raises(PortError, match=r"--port of prefill-0 says '9'"):
        contract(EXTRA_SERVER_ARGS="--port 9")


def test_ipv6_nodes_are_bound_and_named_as_such() -> None:
    asked = read_spec(
        options={"engine": "vllm-disagg", "model": KIMI, "connector": "vllm-nixl", "nodes": "fd00::1,fd00::2"},
        recipe=None,
        environ={},
        host=HOST,
    )
    launch = plan(asked, host=HOST)
    router = launch.process("router")
    assert value(router, "--host") == "::"
    assert value(router, "--decode") == "http://[fd00::2]:2584"
    assert value(launch.process("decode-0"), "--host") == "::"
    assert launch.process("decode-0").env["VLLM_NIXL_SIDE_CHANNEL_HOST"] == "fd00::2"
    assert launch.process("decode-0").ready[0].target == "http://[fd00::2]:2584/health"


# --- readiness, nodes --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["vllm/kimi_1p1d_ports", "vllm/kimi_2p2d_tp8", "vllm/kimi_1k1k_1p2d_tp8_decode_ep8"])
def test_R1_what_the_launcher_waits_for_is_proved_no_sooner_and_as_long(name: str) -> None:
    case = load(name)
    launch = case.plan()
    proofs = [proof for rank in launch.ranks for process in rank.processes() for proof in process.ready]
    for barrier in case.data["ranks"][0]["barriers"]:
        if barrier["when"] == "before_server":
            continue
        for target in barrier["targets"]:
            place = target.split("//")[-1].split("/")[0]
            asked = [proof for proof in proofs if proof.target.split("//")[-1].split("/")[0] == place]
            assert asked, target
            assert all(proof.timeout_s >= barrier["timeout_s"] for proof in asked)


def test_the_time_for_loading_can_be_set() -> None:
    launch = planned(settings={"server_timeout_s": 60, "router_timeout_s": 30})
    assert launch.process("decode-0").ready[0].timeout_s == 60
    assert {proof.timeout_s for proof in launch.process("router").ready} == {30}


def test_a_container_gets_gpus_nics_limits_and_the_nics_own_libraries() -> None:
    facts = {0: NodeFacts(nics=[nic("ionic_0")], gpu_vendor="amd"), 1: NodeFacts(gpu_vendor="nvidia")}
    asked: dict[str, Any] = {"image": "vllm:x", "ib_devices": ["ionic_0"], "connector": "vllm-nixl"}
    launch = planned(facts=facts, waive=["aiter"], **asked)
    first, second = (rank.groups[0].container for rank in launch.ranks)
    assert first is not None
    assert second is not None
    assert {"/dev/kfd", "/dev/dri", "/dev/infiniband"} <= set(first.needs.devices)
    assert first.needs.ulimits["memlock"] == "-1"
    assert first.needs.ipc_host
    ionic = [mount for mount in first.needs.mounts if "ionic" in mount.source]
    assert ionic
    assert all(mount.optional for mount in ionic)
    assert second.needs.devices == ("/dev/infiniband",)
    assert not [mount for mount in second.needs.mounts if "ibverbs" in mount.source]


def test_preflight_asks_for_model_gpus_and_named_devices() -> None:
    checks = {(each.kind, each.target) for each in planned(ib_devices=["rdma0"]).ranks[0].groups[0].preflight}
    assert checks == {
        ("path_exists", f"/models/{KIMI}"),
        ("device_present", "/dev/kfd"),
        ("device_present", "/dev/dri"),
        ("path_exists", "/sys/class/infiniband/rdma0"),
    }


def test_stand_ins_get_the_very_argv_and_the_router_is_the_real_one() -> None:
    launch = planned(simulate=True, engine_version="0.21.0")
    decode, router = launch.process("decode-0"), launch.process("router")
    cut = decode.exec.index("--")
    assert decode.exec[:cut] == ("@python", "-m", "disagg_vllm.simulation", "--catalogue-version", "0.21.0")
    assert decode.exec[cut + 1 :] == decode.argv
    assert router.exec == (*OFFLINE, "vllm_router.launch_router", *router.argv[1:])


@pytest.mark.parametrize("name", ["NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"])
def test_collectives_of_a_worker_over_nodes_do_not_stay_on_the_loopback_device(name: str) -> None:
    over_two: dict[str, Any] = {"nodes": 4, "connector": "vllm-nixl", "decode": RoleSpec(tp=16)}
    with pytest.raises(SpecError, match=rf"{name} of prefill-0 is 'lo' \(Python LaunchSpec\), .* nodes meet over it"):
        planned(**over_two, prefill=RoleSpec(tp=16, env={name: "lo"}))
    launch = planned(**over_two, prefill=RoleSpec(tp=16, env={name: "eth0"}))
    assert launch.process("prefill-0.1").env[name] == "eth0"
    assert planned(prefill=RoleSpec(env={name: "lo"})).process("prefill-0").env[name] == "lo"
