"""vLLM without GPUs: KV by files, servers on one machine, NIXL's buffers, the run files for it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from disagg_run import (
    ConflictError,
    LaunchPlan,
    LaunchSpec,
    Node,
    NodeFacts,
    ParityError,
    RoleSpec,
    SpecError,
    TopologyError,
    plan,
)
from disagg_run.spec.reading import read_spec
from tests.vllm_plans import HOST, source, transfer, value

ROOT = Path(__file__).parents[1]
RECIPES = ("vllm-cpu-1p1d.yaml", "vllm-cpu-2p2d.yaml")


def recipe(name: str = RECIPES[0], *, options: Mapping[str, Any] | None = None, **more: Any) -> LaunchPlan:
    return plan(
        read_spec(options={**(options or {}), **more}, recipe=ROOT / "examples" / name, environ={}, host=HOST),
        host=HOST,
    )


def spec(connector: str = "vllm-shared-storage", **fields: Any) -> LaunchSpec:
    given = {"prefill": RoleSpec(tp=1), "decode": RoleSpec(tp=1), "waive": ["unknown-model"], **fields}
    return LaunchSpec(engine="vllm-disagg", model="tiny", connector=connector, **given)


def nodes(*addresses: str) -> list[Node]:
    return [Node(address=address) for address in addresses]


# --- run files ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RECIPES)
def test_a_run_file_gives_the_same_plan_under_simulation_but_for_what_is_started(name: str) -> None:
    def told(made: LaunchPlan) -> dict[str, Any]:
        data: dict[str, Any] = json.loads(made.to_json())
        for key in ("digest", "simulated"):
            data.pop(key)
        for rank in data["ranks"]:
            for group in rank["groups"]:
                for process in group["processes"]:
                    process.pop("exec", None)
        return data

    real, simulated = recipe(name), recipe(name, simulate=True)
    assert told(real) == told(simulated)
    assert not any(process.exec for rank in real.ranks for process in rank.processes())
    assert all(process.exec for rank in simulated.ranks for process in rank.processes())


@pytest.mark.parametrize("name", RECIPES)
def test_nodes_that_are_one_machine_serve_at_their_own_addresses(name: str) -> None:
    made = recipe(name)
    assert made.bound
    for rank in made.ranks:
        for process in rank.processes():
            if process.kind != "setup":
                assert value(process, "--host") == rank.node.address
    assert len({rank.node.address for rank in made.ranks}) == len(made.ranks)


def test_other_nodes_serve_at_all_addresses_and_so_do_unnamed_ones_of_a_simulation() -> None:
    for made in (plan(spec(nodes=nodes("10.0.0.1")), host=HOST), plan(spec(simulate=True), host=HOST)):
        assert "--host" not in made.process("prefill-0").argv
        assert value(made.process("router"), "--host") == "0.0.0.0"


def test_without_gpus_nothing_is_said_of_any_and_byte_code_is_kept() -> None:
    made = recipe()
    assert [(each.kind, each.target) for each in made.ranks[0].groups[0].preflight] == [
        ("path_exists", "/models/tiny-llama")
    ]
    names = {name for process in ("prefill-0", "decode-0") for name in made.process(process).env}
    assert not [name for name in names if name.startswith(("HSA", "ROCM", "VLLM_ROCM", "HIP", "CUDA", "PYTHON"))]
    packed = plan(spec(settings={"device": "cpu"}, pack=True), host=HOST)
    assert len(packed.ranks) == 1
    assert not {*packed.process("decode-0").env, *packed.process("decode-0").unset} & {
        "HIP_VISIBLE_DEVICES",
        "CUDA_VISIBLE_DEVICES",
    }
    image = plan(spec(settings={"device": "cpu"}, image="vllm:v0.32.0"), host=HOST)
    needs = image.ranks[0].groups[0].container
    assert needs is not None
    assert "/dev/kfd" not in needs.needs.devices
    assert ("/tmp/disagg-run-kv", False) in [(mount.source, mount.read_only) for mount in needs.needs.mounts]


def test_the_device_is_the_user_s_word_then_the_node_s() -> None:
    def variables(**fields: Any) -> set[str]:
        facts = {0: NodeFacts(gpu_vendor="nvidia"), 1: NodeFacts(gpu_vendor="nvidia")}
        return set(plan(spec("vllm-nixl", **fields), facts, host=HOST).process("prefill-0").env)

    assert "VLLM_ROCM_USE_AITER" not in variables()
    assert "VLLM_ROCM_USE_AITER" in variables(settings={"device": "amd"})


def test_the_servers_of_the_processor_s_recipes_have_addresses_of_their_own() -> None:
    for name, count in zip(RECIPES, (2, 4), strict=True):
        launch = recipe(name)
        found = [process for rank in launch.ranks for process in rank.processes() if process.kind == "server"]
        assert len({value(process, "--host") for process in found}) == len(found) == count
        assert {transfer(process)["kv_connector"] for process in found} == {"ExampleConnector"}
        assert not [text for process in found for text in process.env if "VISIBLE_DEVICES" in text]


# --- KV by files -------------------------------------------------------------------------------------------------


def test_prefill_and_decode_share_a_directory_without_prefix_caching() -> None:
    made = recipe(settings=["shared_storage_path=/shared/kv"])
    for name, role in (("prefill-0", "kv_producer"), ("decode-0", "kv_consumer")):
        assert json.loads(value(made.process(name), "--kv-transfer-config")) == {
            "kv_connector": "ExampleConnector",
            "kv_role": role,
            "kv_connector_extra_config": {"shared_storage_path": "/shared/kv"},
        }
        assert "--no-enable-prefix-caching" in made.process(name).argv
    key = "argv/--kv-transfer-config/kv_connector_extra_config.shared_storage_path"
    assert source(made, "prefill-0", key) == "command line --set"
    assert value(made.process("router"), "--kv-connector") == "nixl"
    assert value(made.process("router"), "--prefill") == "http://127.0.0.1:2584"


def test_two_directories_are_refused() -> None:
    other = RoleSpec(tp=1, settings={"shared_storage_path": "/other"})
    with pytest.raises(ParityError, match=r"shared-storage-path.*/tmp/disagg-run-kv.*/other"):
        plan(spec(decode=other), host=HOST)


def test_ranks_that_would_write_one_file_are_refused() -> None:
    with pytest.raises(TopologyError, match=r"prefill has tensor-parallel size 2.*one file.*--prefill-tp 1"):
        plan(spec(prefill=RoleSpec(tp=2)), host=HOST)
    latent = LaunchSpec(engine="vllm-disagg", model="Kimi-K2.5-MXFP4", connector="vllm-shared-storage")
    assert plan(latent, host=HOST).process("prefill-0")  # each rank has the whole KV


def test_servers_on_several_machines_need_a_directory_that_is_theirs() -> None:
    two = nodes("10.0.0.1", "10.0.0.2")
    with pytest.raises(SpecError, match=r"2 nodes.*--set shared_storage_path=DIR"):
        plan(spec(nodes=two), host=HOST)
    assert plan(spec(nodes=two, settings={"shared_storage_path": "/shared"}), host=HOST).ranks


def test_kv_of_earlier_runs_is_removed_before_servers_start_and_nothing_else(tmp_path: Path) -> None:
    place = tmp_path / "kv"
    setup = recipe(settings=[f"shared_storage_path={place}"]).process("kv-directory")
    argv = [sys.executable, *setup.argv[1:]]
    subprocess.run(argv, check=True)
    assert place.is_dir()
    (place / "03ecf1f11c6c262dd6704b330928c34d").mkdir()
    (place / "03ecf1f11c6c262dd6704b330928c34d" / "layer.safetensors").write_text("KV")
    (place / "notes").mkdir()
    (place / "03ecf1f11c6c262dd6704b330928c34d.txt").write_text("not KV")
    subprocess.run(argv, check=True)
    assert sorted(os.listdir(place)) == ["03ecf1f11c6c262dd6704b330928c34d.txt", "notes"]


def test_servers_of_the_first_rank_wait_for_the_empty_directory_and_stand_ins_leave_it_alone() -> None:
    made = recipe(simulate=True)
    assert [(edge.process, edge.until) for edge in made.process("prefill-0").after] == [("kv-directory", "ready")]
    assert made.process("kv-directory").exec[0] == "true"
    names = [process.name for rank in made.ranks for process in rank.processes()]
    assert names.count("kv-directory") == 1


# --- NIXL --------------------------------------------------------------------------------------------------------


def test_nixl_s_buffers_are_on_the_processor_where_the_servers_are() -> None:
    made = plan(spec("vllm-nixl", settings={"device": "cpu"}), host=HOST)
    assert transfer(made.process("prefill-0"))["kv_buffer_device"] == "cpu"
    assert "processor" in source(made, "prefill-0", "argv/--kv-transfer-config/kv_buffer_device")
    assert "UCX_TLS" not in made.process("prefill-0").env
    assert "kv_buffer_device" not in transfer(plan(spec("vllm-nixl"), host=HOST).process("prefill-0"))
    chosen = plan(spec("vllm-nixl", settings={"kv_buffer_device": "cpu", "nixl_backends": ["UCX"]}), host=HOST)
    assert transfer(chosen.process("decode-0"))["kv_buffer_device"] == "cpu"
    assert transfer(chosen.process("decode-0"))["backends"] == ["UCX"]


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"settings": {"kv_buffer_device": "cpu"}}, "nixl-buffer-device"),
        ({"settings": {"nixl_backends": ["UCX", "GDS"]}}, "nixl-backends"),
        ({"env": {"VLLM_KV_CACHE_LAYOUT": "HND"}}, "kv-cache-layout"),
    ],
)
def test_what_nixl_s_peers_compare_must_be_equal(fields: dict[str, Any], name: str) -> None:
    uneven = {"decode": RoleSpec(tp=1, **fields)}
    with pytest.raises(ParityError, match=name):
        plan(spec("vllm-nixl", **uneven), host=HOST)
    waived = plan(spec("vllm-nixl", waive=["unknown-model", name], **uneven), host=HOST)
    assert any(name in each.message for each in waived.waived)


def test_a_second_connector_is_no_answer_to_which_moves_kv() -> None:
    with pytest.raises((ConflictError, SpecError), match="connector"):
        plan(spec("vllm-shared"), host=HOST)
