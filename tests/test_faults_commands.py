"""Public fault reports of commands and of what goes with them: paths, quoting, layouts, releases.

The numbers are those of the collection; each test has the input of the report.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest

from disagg_run import (
    ArgText,
    Combination,
    Extension,
    LaunchPlan,
    Layer,
    Mount,
    NodeFacts,
    ParityError,
    PlanError,
    RoleSpec,
    RouterSpec,
    Source,
    SpecError,
    plan,
)
from disagg_run.planning.tested import untested_remark
from disagg_run.spec.reading import read_spec
from tests import atom_plans, sglang_plans, vllm_plans
from tests.plan_values import value

TYPED = Source(layer=Layer.COMMAND_LINE, where="--args")
PLANNED: dict[str, Callable[..., LaunchPlan]] = {
    "sglang": sglang_plans.planned,
    "vllm": vllm_plans.planned,
    "atom": atom_plans.planned,
}
MODEL_FLAG = {"sglang": "--model-path", "vllm": "serve", "atom": "--model"}


def typed(*words: str) -> ArgText:
    return ArgText(words=words, source=TYPED)


# --- B51: host paths and container paths -------------------------------------------------------------------------


def contained(engine: str, **fields: Any) -> LaunchPlan:
    return PLANNED[engine](image="engine:1", engine_version=VERSIONS[engine], **fields)


VERSIONS = {"sglang": "0.5.23", "vllm": "0.32.0", "atom": "2026.8.22"}


def mounts(launch: LaunchPlan, rank: int = 0) -> tuple[Mount, ...]:
    container = launch.ranks[rank].groups[0].container
    assert container is not None
    return container.needs.mounts


def all_words(launch: LaunchPlan) -> list[str]:
    """Every word and value of every process."""
    every = [each for rank in launch.ranks for each in rank.processes()]
    return [word for each in every for word in (*each.argv, *each.env.values())]


@pytest.mark.parametrize("engine", PLANNED)
def test_B51_a_model_that_is_mounted_elsewhere_is_named_by_its_place_inside(engine: str) -> None:
    launch = contained(engine, model_path="/nfs/models/m", mounts=["/nfs/models/m:/model:ro"])
    for name in ("prefill-0", "decode-0"):
        assert value(launch.process(name), MODEL_FLAG[engine]) == "/model"
    assert not [word for word in all_words(launch) if "/nfs" in word]
    assert mounts(launch) == (Mount(source="/nfs/models/m", target="/model", read_only=True),)
    assert launch.model.path == "/nfs/models/m"
    (check,) = [each for each in launch.ranks[0].groups[0].preflight if each.name == "model"]
    assert check.target == "/model", "the agent looks where the engine does, inside"


@pytest.mark.parametrize("engine", PLANNED)
def test_B51_a_model_that_nobody_mounts_is_mounted_at_its_own_path(engine: str) -> None:
    launch = contained(engine, model_path="/nfs/models/m")
    assert value(launch.process("prefill-0"), MODEL_FLAG[engine]) == "/nfs/models/m"
    assert mounts(launch) == (Mount(source="/nfs/models/m", target="/nfs/models/m"),)


@pytest.mark.parametrize("engine", PLANNED)
@pytest.mark.parametrize(
    ("word", "shown"),
    [("/nfs/models/tok", "/nfs/models/tok"), ('{"path": "/nfs/models/a b"}', "/nfs/models/a")],
)
def test_B51_a_path_of_the_host_by_hand_is_refused_with_the_path_inside(engine: str, word: str, shown: str) -> None:
    given: dict[str, Any] = {"model_path": "/nfs/models/m", "mounts": ["/nfs/models:/model"]}
    with pytest.raises(PlanError) as caught:
        contained(engine, env={"TOKENIZER": word}, **given)
    assert str(caught.value) == (
        f"variable TOKENIZER of prefill-0 names {shown!r}, which is a path of the host that the container of engine:1"
        f" does not have: write '/model/{shown.rpartition('/')[2]}', where the container has it, or let it through with"
        " --waive host-paths"
    )
    waived = contained(engine, env={"TOKENIZER": word}, waive=["host-paths"], **given)
    assert [remark.source for remark in waived.waived] == ["host-paths"]
    assert contained(engine, env={"TOKENIZER": "/model/tok", "CACHE": "/srv/nfs/models/x"}, **given)


def test_B51_a_neighbour_of_the_model_that_is_not_mounted_is_refused_with_the_mount() -> None:
    by_hand = typed("--tokenizer-path=/models/tok")
    with pytest.raises(PlanError, match=r"--tokenizer-path of prefill-0 names '/models/tok'.*mount it with --mount /"):
        contained("sglang", args=[by_hand])
    launch = contained("sglang", args=[by_hand], mounts=["/models/tok"])
    assert Mount(source="/models/tok", target="/models/tok", read_only=False) in mounts(launch)
    assert value(sglang_plans.planned(args=[by_hand]).process("prefill-0"), "--tokenizer-path") == "/models/tok"


def test_B51_a_snapshot_is_looked_for_on_the_host_and_named_by_its_place_inside() -> None:
    repository = "/hub/models--org--DeepSeek-R1-0528"
    facts = {rank: NodeFacts(links={repository: f"{repository}/snapshots/0123"}) for rank in (0, 1)}
    more: dict[str, Any] = {"model_dir": "/hub", "facts": facts, "waive": ["ib-devices"]}
    launch = contained("sglang", mounts=["/hub:/cache"], **more)
    assert value(launch.process("decode-0"), "--model-path") == "/cache/models--org--DeepSeek-R1-0528/snapshots/0123"
    assert [mount.target for mount in mounts(launch)] == ["/cache"]
    # The snapshot alone is links into the directory above it: its repository is mounted beside.
    alone = contained("sglang", mounts=[f"{repository}/snapshots/0123:/model"], **more)
    assert value(alone.process("decode-0"), "--model-path") == f"{repository}/snapshots/0123"
    assert Mount(source=repository, target=repository) in mounts(alone)


def test_B51_mounts_are_asked_for_in_every_layer_and_what_is_none_is_refused(tmp_path: Path) -> None:
    recipe = tmp_path / "r.yaml"
    recipe.write_text(
        "engine: atom-disagg\nmodel: DeepSeek-V4-Pro\nimage: atom:1\nmodel-dir: /nfs\nmounts: [/nfs:/model:ro]\n"
    )
    spec = read_spec(options={"mounts": ["/scratch"]}, recipe=recipe, environ={}, host=atom_plans.HOST)
    assert spec.mounts == ("/nfs:/model:ro", "/scratch")
    assert str(spec.source("mounts./nfs:/model:ro")) == "run file r.yaml:5"
    launch = plan(spec, host=atom_plans.HOST)
    assert value(launch.process("prefill-0"), "--model") == "/model/DeepSeek-V4-Pro"
    for wrong in ("nfs:/model", "/nfs:model", "/a:/b:/c", "/a:/b:rx"):
        with pytest.raises(SpecError, match=r"--mount: '.*' is no mount: write /HOST:/INSIDE"):
            read_spec(options={"mounts": [wrong]}, recipe=recipe, environ={}, host=atom_plans.HOST)
    with pytest.raises(SpecError, match=r"'/a' and '/b' are both to be mounted at '/model'"):
        contained("atom", mounts=["/a:/model", "/b:/model"])
    with pytest.raises(PlanError, match=r"'/models/DeepSeek-V4-Pro' and '/x' are both to be mounted at"):
        contained("atom", mounts=["/x:/models/DeepSeek-V4-Pro"])
    bare = atom_plans.planned(mounts=["/nfs:/model"], model_path="/nfs/m")
    assert value(bare.process("prefill-0"), "--model") == "/nfs/m"
    assert [each.message for each in bare.warnings] == [
        "mounts are asked for, but no image is: what runs on the bare host sees all of it"
    ]


# --- B62: KV that lies differently on one side --------------------------------------------------------------------


def test_B62_a_cache_manager_that_is_off_on_one_side_is_refused_with_both_values() -> None:
    """As reported: prefill alone has --disable-hybrid-kv-cache-manager."""
    off = typed("--disable-hybrid-kv-cache-manager")
    for connector in ("vllm-nixl", "vllm-moriio"):
        with pytest.raises(ParityError) as caught:
            vllm_plans.planned(connector=connector, prefill=RoleSpec(args=[off]))
        assert "hybrid-kv-cache-manager is '--disable-hybrid-kv-cache-manager' for prefill-0" in str(caught.value)
        assert "but not set for decode-0" in str(caught.value)
        assert vllm_plans.planned(connector=connector, args=[off]).bound
    with pytest.raises(ParityError, match="hybrid-kv-cache-manager"):
        vllm_plans.planned(decode=RoleSpec(args=[typed("--no-disable-hybrid-kv-cache-manager")]), args=[off])


def test_B62_sizes_between_which_blocks_differ_are_refused_where_the_model_is_not_known_to_allow_it() -> None:
    """As reported: prefill of TP 4 and decode of DP 8, whose physical blocks were 16 and 32 tokens."""
    sizes = {"prefill": RoleSpec(tp=4), "decode": RoleSpec(tp=1, dp=8), "connector": "vllm-nixl"}
    with pytest.raises(ParityError, match=r"attention-tp is 4 for prefill-0 .* but 1 for decode-0 .*'some-hybrid'"):
        vllm_plans.planned("some-hybrid", waive=["unknown-model"], **sizes)
    with pytest.raises(ParityError, match=r"block-size is '16' for prefill-0 .* but '32' for decode-0"):
        vllm_plans.planned(
            prefill=RoleSpec(args=[typed("--block-size", "16")]), decode=RoleSpec(args=[typed("--block-size", "32")])
        )


@pytest.mark.parametrize("engine", PLANNED)
def test_B62_the_run_is_not_serving_before_a_generation_came_through_the_router(engine: str) -> None:
    router = PLANNED[engine]().process("router")
    assert "generation" in [proof.kind for proof in router.ready]


# --- B95: an engine's release and the router of another day ------------------------------------------------------


def untested(launch: LaunchPlan) -> list[str]:
    return [each.message for each in launch.warnings if "not tested together" in each.message]


def test_B95_an_engine_that_asks_for_more_than_the_router_sends_is_warned_of_and_must_pass_a_generation() -> None:
    """As reported: vLLM 0.18 with MoRI-IO and a router build from before its connector option."""
    launch = vllm_plans.planned(engine_version="0.18.0", router=RouterSpec(version="0.1.5"))
    assert untested(launch) == [
        "vllm-disagg 0.18.0, vllm-moriio and router 0.1.5 were not tested together (tested are >=0.20.0,<=0.32.0 with"
        " router ==0.1.17): generations may fail although all start, so the run serves only once one has come through"
        " the router"
    ]
    router = launch.process("router")
    assert value(router, "--kv-connector") == "moriio", "the option that fills in what the connector needs"
    assert [proof.kind for proof in router.ready][-1] != "tcp"
    assert "generation" in [proof.kind for proof in router.ready]


@pytest.mark.parametrize(
    ("engine", "fields", "told"),
    [
        ("vllm", {"engine_version": "0.33.0"}, "vllm-disagg 0.33.0, vllm-moriio and router 0.1.17"),
        ("vllm", {"engine_version": "0.19.1", "connector": "vllm-nixl"}, "vllm-disagg 0.19.1, vllm-nixl and"),
        ("vllm", {"router": RouterSpec(version="0.1.18")}, "and router 0.1.18"),
        ("vllm", {"image": "v:x", "router": RouterSpec(image="r:x")}, "a router image of no stated version"),
        ("sglang", {"engine_version": "0.5.24"}, "sglang-disagg 0.5.24, sglang-mori and router 0.3.2"),
        ("sglang", {"router": RouterSpec(version="0.3.3")}, "and router 0.3.3"),
        ("atom", {"engine_version": "2026.9.1"}, "atom-disagg 2026.9.1, atom-mooncake and router 2026.8.22"),
        ("sglang", {"router": RouterSpec(mode="external", version="0.3.0")}, "let one come through your router before"),
        ("vllm", {}, ""),
        ("vllm", {"connector": "vllm-nixl"}, ""),
        ("vllm", {"engine_version": "0.22.1"}, ""),
        ("sglang", {"connector": "sglang-mooncake", "engine_version": "0.5.12.post1"}, ""),
        ("sglang", {"router": RouterSpec(mode="external")}, ""),
        ("atom", {"router": RouterSpec(version="2026.8.22")}, ""),
    ],
)
def test_B95_every_triple_that_nobody_tested_is_warned_of(engine: str, fields: dict[str, Any], told: str) -> None:
    found = untested(PLANNED[engine](**fields))
    assert (len(found) == 1 and told in found[0]) if told else found == []


def test_B95_a_connector_brings_what_it_was_tested_with_and_an_engine_that_says_nothing_is_not_warned_of() -> None:
    engine = sglang_plans.HOST.engine("sglang-disagg")
    mine = Extension(name="my-link", summary="mine", kind="connector")
    spec = sglang_plans.spec()
    remark = untested_remark(engine, mine, spec, version="0.5.23", router="0.3.2")
    assert "none is tested with my-link" in remark
    tested = attrs.evolve(mine, tested=[Combination(engine=">=0.5.20", connectors=("my-link",), router=">=0.3")])
    assert untested_remark(engine, tested, spec, version="0.5.23", router="0.3.2") == ""
    assert untested_remark(attrs.evolve(engine, tested=()), mine, spec, version="9", router="9") == ""
