"""SGLang by version: what each release is told, and that it knows all of it."""

from __future__ import annotations

from typing import Any

import pytest

from disagg_run import ArgText, BenchSpec, FlagError, NodeFacts, RoleSpec, SpecError
from disagg_run.catalogue import Catalogue, load_catalogue
from disagg_sglang import versions
from tests.sglang_plans import planned, value, values

DEP: dict[str, Any] = {"dp_attention": True, "expert_parallel": True}
CATALOGUES: dict[str, Catalogue] = {
    ref.version: load_catalogue(ref) for ref in versions.CATALOGUES if ref.program == "server"
}
BETWEEN = ("0.5.10", "0.5.13.post1", "0.5.15.post1", "0.5.22", "0.6.0")


def everything(model: str, version: str, mode: dict[str, Any]) -> Any:
    """A plan with all that the plugin can say: HiCache on a store, metrics, speculation, a worker over two nodes."""
    speculates: dict[str, Any] = {} if model.startswith(("GLM", "Qwen")) else {"mtp": 1}
    return planned(
        model,
        nodes=3,
        engine_version=version,
        prefill=RoleSpec(tp=16, **mode, **speculates),
        decode=RoleSpec(tp=8, **mode, **speculates),
        settings={
            "kv_offloading": "dram",
            "hicache_storage_backend": "mooncake",
            "enable_metrics": True,
            "mc_master_port": 20050,
        },
        ib_devices=["rdma0"],
        waive=["attention-tp"],
    )


@pytest.mark.parametrize("version", [*versions.KNOWN, *BETWEEN])
@pytest.mark.parametrize("model", ["DeepSeek-R1-0528", "DeepSeek-R1-0528-MXFP4-v2", "GLM-5-FP8", "DeepSeek-V4-Pro"])
@pytest.mark.parametrize("mode", [{}, DEP])
def test_every_version_is_told_only_what_it_or_the_nearest_known_one_knows(
    model: str, version: str, mode: dict[str, Any]
) -> None:
    if model == "DeepSeek-V4-Pro" and version in ("0.5.9", "0.5.10"):
        with pytest.raises(SpecError, match=r"for versions >=0\.5\.12, not for"):
            everything(model, version, mode)
        return
    launch = everything(model, version, mode)
    assert [each for each in launch.warnings if "not tested together" not in each.message] == []
    catalogue = CATALOGUES[versions.catalogue_version(version)]
    for name in ("prefill-0", "prefill-0.1", "decode-0"):
        for word in launch.process(name).argv:
            if word.startswith("--"):
                found = catalogue.lookup(word)
                assert found is not None, (name, word)
                assert not found.deprecated, (name, word)


@pytest.mark.parametrize("version", ["0.5.9", "0.5.12", "0.5.13"])
def test_R5_graph_sizes_up_to_0_5_13(version: str) -> None:
    process = planned(engine_version=version).process("prefill-0")
    assert values(process, "--cuda-graph-bs")[-1] == "128"


@pytest.mark.parametrize("version", ["0.5.14", "0.5.14rc1", "0.5.19", "0.5.23"])
def test_R5_graph_sizes_from_0_5_14_are_those_of_decode_on_prefill_too(version: str) -> None:
    for name in ("prefill-0", "decode-0"):
        process = planned(engine_version=version).process(name)
        assert values(process, "--cuda-graph-bs-decode")[-1] == "128"
        assert not {"--cuda-graph-bs", "--cuda-graph-bs-prefill"} & set(process.argv)


@pytest.mark.parametrize("version", versions.KNOWN)
def test_R6_a_flag_that_does_nothing_is_given_to_no_version(version: str) -> None:
    argv = planned(engine_version=version).process("decode-0").argv
    assert "--prefill-round-robin-balance" not in argv


def test_no_graphs_are_one_switch_and_later_a_backend_of_each_phase() -> None:
    old = planned("DeepSeek-V4-Pro", engine_version="0.5.12").process("prefill-0")
    assert "--disable-cuda-graph" in old.argv
    new = planned("DeepSeek-V4-Pro", engine_version="0.5.14").process("prefill-0")
    assert "--disable-cuda-graph" not in new.argv
    assert value(new, "--cuda-graph-backend-decode") == value(new, "--cuda-graph-backend-prefill") == "disabled"


def test_dp_attention_is_spelled_by_version() -> None:
    sides: dict[str, Any] = {"prefill": RoleSpec(dp_attention=True), "decode": RoleSpec(dp_attention=True)}
    old = planned(engine_version="0.5.19", **sides).process("decode-0")
    assert "--enable-dp-attention" in old.argv
    assert value(old, "--dp-size") == "8"
    new = planned(engine_version="0.5.23", **sides).process("decode-0")
    assert not {"--enable-dp-attention", "--dp-size"} & set(new.argv)
    assert value(new, "--attn-dp-size") == "8"


def test_the_version_is_that_of_the_image_or_of_what_is_installed() -> None:
    image = planned(image="lmsysorg/sglang-rocm:v0.5.15.post1-rocm720-mi35x-20260719")
    assert image.engine_version == "0.5.15.post1"
    installed = planned(facts={0: NodeFacts(engine_version="0.5.12")}, simulate=True)
    assert installed.engine_version == "0.5.12"
    assert "--cuda-graph-bs" in installed.process("decode-0").argv
    assert planned().engine_version == versions.NEWEST


def test_older_versions_are_refused() -> None:
    with pytest.raises(SpecError, match=r"plans for versions >=0\.5\.9, not for 0\.4\.6"):
        planned(engine_version="0.4.6")


# --- the history of flags ----------------------------------------------------------------------------------------


def test_gone_flags_are_exactly_those_that_a_known_parser_lost() -> None:
    lost = set()
    for before, after in zip(versions.KNOWN, versions.KNOWN[1:], strict=False):
        names = {name for spec in CATALOGUES[before].flags() for name in (*spec.names, *spec.negations)}
        lost |= {(name, after) for name in names if CATALOGUES[after].lookup(name) is None}
    assert {(record.name, record.since) for record in versions.GONE_FLAGS} == lost


@pytest.mark.parametrize("record", versions.GONE_FLAGS, ids=lambda record: record.name)
def test_what_to_write_instead_of_a_gone_flag_is_known_from_then_on(record: Any) -> None:
    name, _, wanted = record.successor.partition("=")
    for version in versions.KNOWN[versions.KNOWN.index(record.since) :] if name else ():
        found = CATALOGUES[version].lookup(name)
        assert found is not None, version
        assert not wanted or wanted in found.choices, version


@pytest.mark.parametrize("record", versions.GONE_FLAGS, ids=lambda record: record.name)
def test_B38_a_gone_flag_of_the_user_is_refused_with_its_successor(record: Any) -> None:
    args = ArgText(words=(record.name, "1"))
    with pytest.raises(FlagError, match=f"'{record.name}'.* is gone since {record.since}") as refusal:
        planned(engine_version=versions.NEWEST, decode=RoleSpec(args=[args]))
    assert record.successor in str(refusal.value)


@pytest.mark.parametrize("version", ["0.5.9", "0.5.12", "0.5.14", "0.5.23"])
def test_decode_is_told_its_further_slots_where_the_release_reads_them(version: str) -> None:
    launch = planned(engine_version=version, decode=RoleSpec(**DEP))
    decode, variable, flag = launch.process("decode-0"), "SGLANG_DISAGGREGATION_NUM_PRE_ALLOCATE_REQS", "extra-slots"
    assert (decode.env.get(variable) == "32") is (version == "0.5.12")
    told = [word for word in decode.argv if flag in word]
    assert told == (["--disaggregation-decode-extra-slots"] if version in ("0.5.14", "0.5.23") else [])
    assert not [word for word in launch.process("prefill-0").argv if flag in word]


def test_a_small_batch_has_the_slots_that_the_engine_gives_it_by_itself() -> None:
    for load, told in ((256, False), (512, True)):
        decode = planned(decode=RoleSpec(**DEP), bench=BenchSpec(concurrency=[load])).process("decode-0")
        assert value(decode, "--max-running-requests") == str(load)
        assert ("--disaggregation-decode-extra-slots" in decode.argv) is told
