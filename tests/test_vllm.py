"""The vLLM plugin: values, models, releases and flags of its servers; faults of the public launchers by number."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import pytest
from packaging.specifiers import SpecifierSet

from disagg_run import ArgText, FlagError, LaunchSpec, Layer, NodeFacts, RoleSpec, SpecError, plan
from disagg_run.spec.reading import read_spec
from disagg_run.testing import check_engine
from disagg_vllm import models, versions
from tests.parity.case import load
from tests.parity.comparing import compare
from tests.vllm_plans import HOST, KIMI, contract, planned, source, value, warnings

ROOT = Path(__file__).parents[1]
MODELS = [row.name for row in models.read_models()]

# --- the contract ------------------------------------------------------------------------------------------------


def test_the_engine_keeps_the_contract() -> None:
    check_engine("vllm-disagg")


@pytest.mark.parametrize("connector", ["vllm-moriio", "vllm-nixl"])
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(("prefill", "decode"), [(1, 1), (2, 1), (1, 2)])
@pytest.mark.parametrize("mode", [{}, {"dp_attention": True, "expert_parallel": True}, {"expert_parallel": True}])
def test_every_model_is_planned_without_a_remark(
    model: str, prefill: int, decode: int, mode: dict[str, Any], connector: str
) -> None:
    sides: dict[str, Any] = {"prefill": RoleSpec(workers=prefill, **mode), "decode": RoleSpec(workers=decode, **mode)}
    launch = planned(model, nodes=prefill + decode, connector=connector, settings={}, **sides)
    assert warnings(launch) == []


def test_a_discovery_port_outside_the_ephemeral_range_leaves_no_warning_at_all() -> None:
    assert planned(settings={"discovery_port": 26367}).warnings == ()


def test_the_example_run_file_gives_the_same_commands_as_the_job_script() -> None:
    recipe = ROOT / "examples" / "kimi-fp4-mi355x-vllm-disagg.yaml"
    asked = read_spec(options={"nodes": "10.0.0.1,10.0.0.2,10.0.0.3"}, recipe=recipe, environ={}, host=HOST)
    case = load("vllm/kimi_1k1k_1p2d_tp8_decode_ep8")
    differing = {each.item for each in compare(case, plan(asked, case.facts(), host=HOST))}
    # The run file moves the discovery port out of the ephemeral range; TQDM and the like are the job script's own.
    assert differing <= {
        "env VLLM_HOST_IP",
        "env MORI_RDMA_TC",
        "flag --kv-transfer-config kv_connector_extra_config.proxy_ping_port",
        "flag --vllm-discovery-address",
    }


# --- who set what ------------------------------------------------------------------------------------------------


def test_each_value_names_its_source() -> None:
    launch = contract()
    assert source(launch, "decode-0", "argv/--tensor-parallel-size") == "environment contract DECODE_TP_SIZE"
    assert source(launch, "decode-0", "argv/--served-model-name") == "environment contract MODEL_NAME"
    assert source(launch, "decode-0", "argv/--kv-transfer-config/kv_role") == "connector (plugin vllm-moriio)"
    assert source(launch, "decode-0", "env/UCX_TLS") == "connector (plugin vllm-moriio)"
    assert source(launch, "decode-0", "env/VLLM_USE_V1") == "engine default (plugin vllm-disagg)"
    table = (ROOT / "plugins/vllm/disagg_vllm/models.yaml").read_text().splitlines()
    for key, text in (
        ("argv/--all2all-backend", "mori_low_latency"),
        ("argv/--mm-encoder-tp-mode", "mm-encoder-tp-mode"),
        ("env/VLLM_ENGINE_READY_TIMEOUT_S", "VLLM_ENGINE_READY_TIMEOUT_S"),
    ):
        said = source(launch, "decode-0", key)
        assert said.startswith("model table models.yaml:")
        assert text in table[int(said.split("models.yaml:")[1].split()[0]) - 1]


def test_explicit_values_beat_the_table_and_show_what_they_replaced() -> None:
    launch = planned(settings={"block_size": 16, "max_model_len": "64K", "prefix_caching": True})
    decode = launch.process("decode-0")
    assert (value(decode, "--block-size"), value(decode, "--max-model-len")) == ("16", "64K")
    assert "--enable-prefix-caching" in decode.argv
    assert "--no-enable-prefix-caching" not in decode.argv
    assert launch.sources is not None
    (new, _), (old, text) = launch.sources.values["/ranks/1/groups/0/processes/0/argv/--block-size"]
    assert (new.layer, old.layer, text) == (Layer.PROGRAM, Layer.MODEL, "1")


def test_a_role_has_what_its_own_part_of_the_row_says() -> None:
    launch = planned()
    assert "--all2all-backend" not in launch.process("prefill-0").argv
    assert value(launch.process("decode-0"), "--all2all-backend") == "mori_low_latency"
    launch = planned("MiniMax-M3-MXFP4")
    assert launch.process("prefill-0").env["VLLM_ROCM_QUICK_REDUCE_MAX_SIZE_BYTES_MB"] == "2048"
    assert "VLLM_ROCM_QUICK_REDUCE_MAX_SIZE_BYTES_MB" not in launch.process("decode-0").env
    assert "--language-model-only" in launch.process("decode-0").argv


# --- models ------------------------------------------------------------------------------------------------------


def test_R15_an_unknown_model_is_refused_with_the_nearest_and_can_be_let_through() -> None:
    with pytest.raises(SpecError, match=r"no model 'MiniMax-M2\.6'.*did you mean 'MiniMax-M2\.5'\?.*unknown-model"):
        planned("MiniMax-M2.6")
    launch = planned("tiny-random", waive=["unknown-model"])
    assert launch.process("prefill-0").argv[:3] == ("vllm", "serve", "/models/tiny-random")
    assert "--block-size" not in launch.process("prefill-0").argv


def test_the_model_id_is_its_name_and_not_its_place() -> None:
    launch = contract(MODEL_PATH="/hub/models--amd--Kimi-K2.5-MXFP4/snapshots/0123")
    assert launch.model.served_name == KIMI
    assert value(launch.process("decode-0"), "--served-model-name") == KIMI
    assert launch.process("decode-0").ready[0].identity["served_model"] == KIMI
    assert planned(served_model_name="kimi").process("router").ready[0].identity == {"listener": "http"}
    assert planned(served_model_name="kimi").model.served_name == "kimi"


CACHE = "/models/models--amd--Kimi-K2.5-MXFP4"


@pytest.mark.parametrize("target", ["b2", f"{CACHE}/snapshots/b2"])
@pytest.mark.parametrize("path", [CACHE, f"{CACHE}/", None])
def test_R28_the_snapshot_of_a_cache_is_the_one_that_refs_main_names(path: str | None, target: str) -> None:
    facts = {rank: NodeFacts(links={CACHE: target, "/models/models--x--Other": "a1"}) for rank in (0, 1)}
    launch = planned(facts=facts, model_path=path, image="vllm:x", ib_devices=["rdma0"])
    for name in ("prefill-0", "decode-0"):
        assert launch.process(name).argv[2] == f"{CACHE}/snapshots/b2"
    group = launch.ranks[0].groups[0]
    assert f"{CACHE}/snapshots/b2" in {check.target for check in group.preflight}
    assert group.container is not None
    assert group.container.needs.mounts[0].source == CACHE


@pytest.mark.parametrize(
    "links", [{}, {"/models/models--x--Other": "a1"}, {f"/models/models--{org}--{KIMI}": "a1" for org in "xy"}]
)
def test_a_model_that_no_cache_or_two_caches_hold_stays_where_it_was_asked_for(links: Mapping[str, str]) -> None:
    launch = planned(facts={0: NodeFacts(links=links)}, ib_devices=["rdma0"])
    assert launch.process("prefill-0").argv[2] == f"/models/{KIMI}"


@pytest.mark.parametrize(
    ("version", "name"), [("0.32.0", "mori_low_latency"), ("0.23.0", "mori_low_latency"), ("0.22.1", "mori")]
)
def test_the_backend_of_experts_is_spelt_as_the_release_does(version: str, name: str) -> None:
    assert value(planned(engine_version=version).process("decode-0"), "--all2all-backend") == name
    asked = planned(engine_version=version, settings={"all2all_backend": "naive"})
    assert value(asked.process("prefill-0"), "--all2all-backend") == "naive"
    assert "--all2all-backend" not in planned("MiniMax-M2.5", engine_version="0.14.1").process("decode-0").argv


@pytest.mark.parametrize("connector", ["vllm-moriio", "vllm-nixl"])
@pytest.mark.parametrize(
    "version", ["0.14.1", "0.16.0", "0.19.1", "0.20.2", "0.22.1", "0.23.0", "0.26.0", "0.28.0", "0.30.0", "0.32.0"]
)
def test_nothing_is_unknown_to_the_parser_of_a_release_or_the_nearest_one(version: str, connector: str) -> None:
    found = 0
    for row in models.read_models():
        if SpecifierSet(row.versions).contains(version):
            launch = planned(row.name, engine_version=version, connector=connector)
            others = ("registers with the router", "not tested together")
            assert [text for text in warnings(launch) if not any(other in text for other in others)] == []
            found += 1
    assert found >= 3


def test_a_release_without_the_model_is_refused() -> None:
    with pytest.raises(SpecError, match=r"'MiniMax-M3-MXFP4' for versions >=0\.24, not for 0\.23\.0"):
        planned("MiniMax-M3-MXFP4", engine_version="0.23.0")


@pytest.mark.parametrize(
    ("image", "version"), [("vllm/vllm-openai-rocm:v0.28.0", "0.28.0"), ("rocm/vllm:nightly", versions.NEWEST)]
)
def test_the_version_is_that_of_the_image_s_tag_where_it_tells_one(image: str, version: str) -> None:
    assert planned(image=image, ib_devices=["rdma0"]).engine_version == version


def test_B38_a_flag_that_is_gone_or_misspelt_is_refused_with_what_to_write() -> None:
    with pytest.raises(FlagError, match=r"'--disable-log-requests' .* is gone since .*--no-enable-log-requests"):
        contract(EXTRA_SERVER_ARGS="--disable-log-requests")
    with pytest.raises(FlagError, match=r"no flag '--max-num-batched-token'.*--max-num-batched-tokens"):
        contract(EXTRA_SERVER_ARGS="--max-num-batched-token 3")
    with pytest.raises(FlagError, match=r"--kv-cache-dtype .* does not take 'fp9'"):
        contract(EXTRA_SERVER_ARGS="--kv-cache-dtype fp9")


def test_B67_router_flags_are_checked_against_the_router_s_own_parser() -> None:
    router = attrs.evolve(LaunchSpec(engine="", model="").router, args=[ArgText(words=("--cache-treshold", "0.3"))])
    with pytest.raises(FlagError, match=r"no flag '--cache-treshold'.*did you mean '--cache-threshold'"):
        planned(router=router)
    other = attrs.evolve(router, args=[], policy="cache_awar")
    with pytest.raises(FlagError, match=r"--policy .* does not take 'cache_awar': did you mean 'cache_aware'"):
        planned(router=other)


# --- run files ---------------------------------------------------------------------------------------------------


def test_the_run_file_of_the_expert_recipe_gives_the_job_script_s_commands() -> None:
    recipe = ROOT / "examples" / "minimax-m25-fp8-mi355x-vllm-ep.yaml"
    devices = ",".join(f"rdma{number}" for number in range(8))
    options = {"nodes": "10.0.0.1,10.0.0.2,10.0.0.3", "ib_devices": devices}
    asked = read_spec(options=options, recipe=recipe, environ={}, host=HOST)
    case = load("vllm/minimax_m25_1p2d_ep8")
    differing = {each.item for each in compare(case, plan(asked, case.facts(), host=HOST))}
    assert {item for item in differing if item.startswith("flag")} <= {
        "flag --kv-transfer-config kv_connector_extra_config.proxy_ping_port",
        "flag --vllm-discovery-address",
    }
