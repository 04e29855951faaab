"""Public fault reports of what is a node's own: RDMA devices, GPUs, addresses; each test has a report's input."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from disagg_run import FlagError, LaunchPlan, Nic, NodeFacts, ParityError, ProcessSpec, RoleSpec, SpecError
from disagg_run.facts_document import facts_to_json, read_facts
from disagg_run.running.nodefacts import gather
from tests import atom_plans, sglang_plans, vllm_plans
from tests.atom_plans import two_on_a_node
from tests.engine_plans import typed
from tests.plan_values import value


def everywhere(nics: Iterable[Nic], nodes: int = 2, **more: Any) -> dict[int, NodeFacts]:
    """The same facts for some nodes."""
    nics = tuple(nics)
    return {rank: NodeFacts(nics=nics, **more) for rank in range(nodes)}


# --- B25: devices that are unusable, or that have no route to each other ------------------------------------------


def two_groups(prefix: str = "mlx5_", inactive: int = 3) -> list[Nic]:
    """16 devices, two for each GPU, in two groups without a route between them; one port is not active."""
    return [
        Nic(
            name=f"{prefix}{number}",
            state="INIT" if number == inactive else "ACTIVE",
            network="east" if number % 2 else "west",
            gpus=(number // 2,),
        )
        for number in range(16)
    ]


def test_B25_of_two_route_groups_one_is_taken_the_same_on_all_nodes_and_nothing_that_is_down() -> None:
    launch = sglang_plans.planned(facts=everywhere(two_groups()))
    west = ",".join(f"mlx5_{number}" for number in range(0, 16, 2))
    for name in ("prefill-0", "decode-0"):
        assert value(launch.process(name), "--disaggregation-ib-device") == west
        assert set(launch.process(name).env["NCCL_IB_HCA"].lstrip("=").split(",")) == set(west.split(","))
    # The group that both roles' nodes have, not the larger one of each.
    other = everywhere(two_groups())
    east_alone = tuple(nic for nic in two_groups() if nic.network == "east" and nic.usable)
    other[1] = NodeFacts(nics=east_alone)
    mixed = sglang_plans.planned(facts=other)
    east = ",".join(nic.name for nic in east_alone)
    assert value(mixed.process("prefill-0"), "--disaggregation-ib-device") == east
    assert value(mixed.process("decode-0"), "--disaggregation-ib-device") == east


def test_B25_a_list_that_mixes_route_groups_is_refused_with_one_that_does_not() -> None:
    facts = everywhere(two_groups())
    with pytest.raises(SpecError) as caught:
        sglang_plans.planned(facts=facts, ib_devices=["mlx5_0", "mlx5_1", "mlx5_2"])
    assert str(caught.value).endswith(
        "RDMA devices 'mlx5_0' (network 'west') and 'mlx5_1' (network 'east') of rank 0 (10.0.0.1) do not reach each"
        " other (Python LaunchSpec): name mlx5_0,mlx5_2, or go on all the same with --waive ib-devices"
    )
    waived = sglang_plans.planned(facts=facts, ib_devices=["mlx5_0", "mlx5_1"], waive=["ib-devices"])
    assert value(waived.process("decode-0"), "--disaggregation-ib-device") == "mlx5_0,mlx5_1"
    unknown = everywhere([Nic(name=f"mlx5_{number}") for number in range(4)])
    assert sglang_plans.planned(facts=unknown, ib_devices=["mlx5_0", "mlx5_1"]).warnings == ()


def test_B25_nodes_without_a_network_in_common_are_refused() -> None:
    facts = {0: NodeFacts(nics=[Nic(name="a", network="east")]), 1: NodeFacts(nics=[Nic(name="a", network="west")])}
    with pytest.raises(SpecError, match=r"devices of rank 0 \(10\.0\.0\.1\) are on east, and no network is one of all"):
        sglang_plans.planned(facts=facts)


def test_B25_rails_with_a_device_for_each_gpu_are_all_used() -> None:
    launch = sglang_plans.planned(facts=everywhere(rails()))
    assert value(launch.process("decode-0"), "--disaggregation-ib-device") == ",".join(each.name for each in rails())


# --- B74: prefill and decode of one node on different rails -------------------------------------------------------


def rails(count: int = 8) -> list[Nic]:
    """A device for each GPU, each on a rail of its own, without routes between rails."""
    return [Nic(name=f"ionic_{gpu}", state="ACTIVE", gpus=(gpu,), network=f"rail{gpu}") for gpu in range(count)]


def shared(engine: str, **fields: Any) -> LaunchPlan:
    """Prefill on GPUs 0-3 and decode on 4-7 of one node."""
    if engine == "atom-mooncake":
        return two_on_a_node(**fields)
    roles: dict[str, Any] = {"prefill": RoleSpec(tp=4), "decode": RoleSpec(tp=4), "pack": True, "nodes": 1}
    planned: Callable[..., LaunchPlan] = sglang_plans.planned if "sglang" in engine else vllm_plans.planned
    return planned(connector=engine, **{**roles, **fields})


CONNECTORS = ("atom-mooncake", "sglang-mori", "sglang-mooncake", "vllm-moriio")


@pytest.mark.parametrize("connector", CONNECTORS)
def test_B74_roles_of_a_node_whose_rails_do_not_meet_are_refused_with_both_sets(connector: str) -> None:
    facts = everywhere(rails(), nodes=1)
    with pytest.raises(ParityError) as caught:
        shared(connector, facts=facts)
    message = str(caught.value)
    assert "prefill-0 and decode-0 share rank 0 (10.0.0.1), but the RDMA devices of their GPUs do not reach" in message
    assert "ionic_0 on rail0, ionic_1 on rail1" in message
    assert "ionic_4 on rail4" in message
    assert "let both use one device by --" in message
    assert "--waive rdma-rails" in message
    waived = shared(connector, facts=facts, waive=["rdma-rails"])
    assert [remark.source for remark in waived.waived] == ["rdma-rails"]


@pytest.mark.parametrize("connector", CONNECTORS)
def test_B74_nothing_is_refused_where_rails_meet_or_nobody_knows(connector: str) -> None:
    joined = [Nic(name=f"ionic_{gpu}", gpus=(gpu,), network="fabric") for gpu in range(8)]
    one_rail = [Nic(name="ionic_0", gpus=range(8), network="rail0")]
    for nics in (joined, one_rail, [Nic(name=f"ionic_{gpu}", gpus=(gpu,)) for gpu in range(8)]):
        assert shared(connector, facts=everywhere(nics, nodes=1)).bound
    no_gpus = [Nic(name=f"ionic_{rail}", network=f"rail{rail}") for rail in range(8)]
    assert shared(connector, facts=everywhere(no_gpus, nodes=1)).bound
    assert shared(connector).bound
    assert shared(connector, facts=everywhere(rails(), nodes=1), simulate=True).bound


def test_B74_the_remedies_that_are_named_work() -> None:
    facts = everywhere(rails(), nodes=1)
    assert vllm_plans.transfer(
        shared("atom-mooncake", facts=facts, settings={"mooncake_protocol": "tcp"}).process("decode-0")
    )["protocol"] == "tcp"  # fmt: skip
    assert shared("atom-mooncake", facts=facts, settings={"ib_device": "ionic_0"}).bound
    assert shared("sglang-mori", facts=facts, ib_devices=["ionic_0"]).bound
    assert shared("vllm-moriio", facts=facts, settings={"moriio_backend": "xgmi"}).bound
    apart = atom_plans.planned(
        facts=everywhere(rails()),
        prefill=RoleSpec(tp=4, dp_attention=True),
        decode=RoleSpec(tp=4, dp_attention=True),
    )
    assert [rank.node.address for rank in apart.ranks] == ["10.0.0.1", "10.0.0.2"]


def test_B74_a_node_says_which_gpus_a_device_is_closest_to_and_a_site_which_network_it_is_on(tmp_path: Path) -> None:
    kfd, devices = tmp_path / "sys/class/kfd/kfd/topology/nodes", tmp_path / "sys/devices"
    (tmp_path / "dev").mkdir(parents=True)
    (tmp_path / "dev/kfd").touch()
    for index, bus in enumerate((0, 0x11, 0xC1)):  # a processor, and a GPU below each of two root complexes
        (kfd / str(index)).mkdir(parents=True)
        (kfd / str(index) / "gpu_id").write_text("0\n" if index == 0 else f"{index}7\n")
        (kfd / str(index) / "properties").write_text(f"domain 0\nlocation_id {bus << 8}\n")
    places = {"0000:11:00.0": "pci0000:10/0000:10:01.0", "0000:c1:00.0": "pci0000:c0/0000:c0:01.0",
              "0000:12:00.0": "pci0000:10/0000:10:01.0", "0000:c2:00.0": "pci0000:c0/0000:c0:01.0"}  # fmt: skip
    (tmp_path / "sys/bus/pci/devices").mkdir(parents=True)
    for address, below in places.items():
        (devices / below / address).mkdir(parents=True)
        (tmp_path / "sys/bus/pci/devices" / address).symlink_to(devices / below / address)
    for name, address in (("ionic_0", "0000:12:00.0"), ("ionic_1", "0000:c2:00.0")):
        (tmp_path / "sys/class/infiniband" / name).mkdir(parents=True)
        (tmp_path / "sys/class/infiniband" / name / "device").symlink_to(devices / places[address] / address)
    found = gather(tmp_path, interfaces=dict, hostname="n0", path="")
    assert [(nic.name, nic.gpus) for nic in found.nics] == [("ionic_0", (0,)), ("ionic_1", (1,))]
    document = facts_to_json({"n0": found}).replace('"network": ""', '"network": "rail"')
    assert [nic.network for nic in read_facts(document, "facts.json")["n0"].nics] == ["rail", "rail"]
    (tmp_path / "sys/bus/pci/devices/0000:c1:00.0").unlink()
    assert [nic.gpus for nic in gather(tmp_path, interfaces=dict, hostname="n0", path="").nics] == [(), ()]


# --- B75: names that others begin with ----------------------------------------------------------------------------


def eighteen() -> dict[int, NodeFacts]:
    return everywhere(Nic(name=f"mlx5_{number}", driver="mlx5_core") for number in range(18))


def test_B75_a_plan_s_own_list_means_the_devices_that_it_names_and_no_others() -> None:
    for planned in (sglang_plans.planned, vllm_plans.planned):
        assert planned(facts=eighteen(), ib_devices=["mlx5_1"]).process("decode-0").env["NCCL_IB_HCA"] == "=mlx5_1"


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("mlx5_1", "mlx5_10, mlx5_11, mlx5_12 and 5 more of rank 0 too: write '=mlx5_1'"),
        ("mlx5_0,mlx5_1:1", "mlx5_10, mlx5_11, mlx5_12 and 5 more of rank 0 too: write '=mlx5_0,mlx5_1:1'"),
        ("^mlx5_1", "mlx5_10, mlx5_11, mlx5_12 and 5 more of rank 0 too: write '^=mlx5_1'"),
        ("=mlx5_1", ""),
        ("mlx5_0", ""),
        ("mlx5_17", ""),
    ],
)
def test_B75_a_users_list_that_stands_for_more_than_it_names_is_warned_of(given: str, told: str) -> None:
    launch = sglang_plans.planned(facts=eighteen(), env={"NCCL_IB_HCA": given})
    assert launch.process("decode-0").env["NCCL_IB_HCA"] == given
    found = [each.message for each in launch.warnings if "NCCL_IB_HCA" in each.message]
    assert (told in found[0]) if told else (found == [])
    assert sglang_plans.planned(env={"NCCL_IB_HCA": given}).warnings == (), "nothing is known of the node"


# --- B77: a node's own value, given once --------------------------------------------------------------------------

STORE = {"kv_offloading": "dram", "hicache_storage_backend": "mooncake"}


def test_B77_a_host_name_of_the_store_for_a_worker_over_two_nodes_is_refused() -> None:
    words = typed("--hicache-storage-backend-extra-config", '{"local_hostname": "10.0.0.1"}')
    with pytest.raises(SpecError) as caught:
        sglang_plans.planned(nodes=3, prefill=RoleSpec(tp=16, args=[words]), settings=STORE)
    assert str(caught.value) == (
        "--hicache-storage-backend-extra-config/local_hostname is '10.0.0.1' (Python --args) for prefill-0 of"
        " rank 0 and prefill-0.1 of rank 1, but it is a node's own: leave it out, for each node's is planned, or give"
        " it to each process by its name (processes.prefill-0.1 in a run file)"
    )
    alone = sglang_plans.planned(prefill=RoleSpec(args=[words]), settings=STORE)
    assert "10.0.0.1" in value(alone.process("prefill-0"), "--hicache-storage-backend-extra-config")


@pytest.mark.parametrize(
    ("planned", "name"),
    [
        (sglang_plans.planned, "SGLANG_HOST_IP"),
        (vllm_plans.planned, "VLLM_HOST_IP"),
        (vllm_plans.planned, "VLLM_NIXL_SIDE_CHANNEL_HOST"),
        (atom_plans.planned, "ATOM_HOST_IP"),
    ],
)
def test_B77_an_address_for_all_servers_is_refused_and_one_for_each_is_taken(
    planned: Callable[..., LaunchPlan], name: str
) -> None:
    with pytest.raises(SpecError, match=rf"{name} is '10\.0\.0\.1' .* for prefill-0 of rank 0 and decode-0 of rank 1"):
        planned(env={name: "10.0.0.1"})
    own = {
        process: ProcessSpec(env={name: f"10.9.0.{number}"}) for number, process in enumerate(("prefill-0", "decode-0"))
    }
    launch = planned(processes=own)
    assert [launch.process(process).env[name] for process in own] == ["10.9.0.0", "10.9.0.1"]
    usual = planned()
    assert [usual.process(process).env[name] for process in own] == ["10.0.0.1", "10.0.0.2"]


@pytest.mark.parametrize("planned", [sglang_plans.planned, vllm_plans.planned, atom_plans.planned])
def test_B77_a_bound_address_for_all_servers_is_refused_unless_it_is_every_address(
    planned: Callable[..., LaunchPlan],
) -> None:
    with pytest.raises((SpecError, FlagError), match=r"--host .*'10\.0\.0\.1' \(Python --args\)"):
        planned(args=[typed("--host", "10.0.0.1")])
    assert planned(args=[typed("--host", "0.0.0.0")]).bound


def test_B77_the_address_in_a_connectors_configuration_is_a_nodes_own_too() -> None:
    words = typed("--kv-transfer-config", '{"kv_connector_extra_config": {"host_ip": "10.0.0.1"}}')
    with pytest.raises(SpecError, match=r"--kv-transfer-config/kv_connector_extra_config/host_ip is '10\.0\.0\.1'"):
        vllm_plans.planned(args=[words])


# --- B94: GPUs that are hidden twice ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "planned", [sglang_plans.planned, vllm_plans.planned, atom_plans.planned], ids=["sglang", "vllm", "atom"]
)
def test_B94_one_variable_chooses_gpus_and_no_other_reaches_the_server(planned: Callable[..., LaunchPlan]) -> None:
    roles: dict[str, Any] = {"prefill": RoleSpec(tp=4), "decode": RoleSpec(tp=4), "pack": True, "nodes": 1}
    decode = planned(**roles).process("decode-0")
    assert decode.env["HIP_VISIBLE_DEVICES"] == "4,5,6,7"
    assert {"ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL"} <= set(decode.unset)
    with pytest.raises(SpecError) as caught:
        planned(
            decode=RoleSpec(tp=4, env={"ROCR_VISIBLE_DEVICES": "4,5"}), **{k: roles[k] for k in roles if k != "decode"}
        )
    assert str(caught.value) == (
        "decode-0 is given ROCR_VISIBLE_DEVICES=4,5 (Python LaunchSpec) and HIP_VISIBLE_DEVICES=4,5,6,7"
        f" (engine default (plugin {planned().engine})), of which the second counts in what the first has left: set one"
        " of them, or let both through with --waive gpu-visibility"
    )
    both = {"ROCR_VISIBLE_DEVICES": "4,5", "HIP_VISIBLE_DEVICES": "4,5"}
    with pytest.raises(SpecError, match=r"ROCR_VISIBLE_DEVICES=4,5 .* and HIP_VISIBLE_DEVICES=4,5 "):
        planned(env=both)
    assert planned(env=both, waive=["gpu-visibility"]).process("prefill-0").env.items() >= both.items()
    four = {"prefill": RoleSpec(tp=4), "decode": RoleSpec(tp=4)}
    assert planned(env={"HIP_VISIBLE_DEVICES": "0,1,2,3"}, **four).bound
