"""Public fault reports of what a command holds: paths, and words that a shell would take apart.

The numbers are those of the collection; each test has the input of the report.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from disagg_run import (
    LaunchPlan,
    Mount,
    NodeFacts,
    PlanError,
    SpecError,
    plan,
)
from disagg_run.spec.reading import read_spec
from tests import atom_plans, sglang_plans, vllm_plans
from tests.engine_plans import PLANNED, typed
from tests.plan_values import all_words, value
from tests.test_faults_plan import start_by_script

MODEL_FLAG = {"sglang": "--model-path", "vllm": "serve", "atom": "--model"}


# --- B51: host paths and container paths -------------------------------------------------------------------------


def contained(engine: str, **fields: Any) -> LaunchPlan:
    return PLANNED[engine](image="engine:1", engine_version=VERSIONS[engine], **fields)


VERSIONS = {"sglang": "0.5.23", "vllm": "0.32.0", "atom": "2026.8.22"}


def mounts(launch: LaunchPlan, rank: int = 0) -> tuple[Mount, ...]:
    container = launch.ranks[rank].groups[0].container
    assert container is not None
    return container.needs.mounts


@pytest.mark.parametrize("engine", PLANNED)
def test_B51_a_model_that_is_mounted_elsewhere_is_named_by_its_place_inside(engine: str) -> None:
    launch = contained(engine, model_path="/nfs/models/m", mounts=["/nfs/models/m:/model:ro"])
    for name in ("prefill-0", "decode-0"):
        assert value(launch.process(name), MODEL_FLAG[engine]) == "/model"
    assert not [word for word in all_words(launch) if "/nfs" in word]
    assert mounts(launch) == (Mount(source="/nfs/models/m", target="/model", read_only=True),)
    assert launch.model.path == "/nfs/models/m"
    assert "/nfs" not in launch.model.served_name, "the engine's own name for its model is the path that it is given"
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


# --- B31: words that a shell would take apart --------------------------------------------------------------------

NASTY = (
    "patch -p1 -d DIR < FILE || exit 1",
    'it\'s "two" words; $(touch made) `touch made` $HOME * ?',
    "two\nlines",
    "\\ \t '\"",
)


@pytest.mark.parametrize("engine", PLANNED)
@pytest.mark.parametrize("word", NASTY)
def test_B31_an_argument_and_a_variable_reach_the_engine_as_they_were_written(
    engine: str, word: str, tmp_path: Path
) -> None:
    """By run file, plan document and the rank's script, which gives them to a program in the engine's place."""
    recipe = tmp_path / "r.yaml"
    # ATOM's server takes no free text but in JSON.
    flag, given = ("--hf-overrides", json.dumps({"a": word})) if engine == "atom" else ("--chat-template", word)
    asked = {
        "engine": f"{engine}-disagg",
        "model": {"sglang": "DeepSeek-R1-0528", "vllm": vllm_plans.KIMI, "atom": "DeepSeek-V4-Pro"}[engine],
        "nodes": ["127.0.0.1", "127.0.0.2"],
        "decode": {"env": {"STEP": word}, "args": [flag, given]},
    }
    recipe.write_text(json.dumps(asked))
    spec = read_spec(options={}, recipe=recipe, environ={}, host=atom_plans.HOST)
    launch = LaunchPlan.from_json(plan(spec, host=atom_plans.HOST).to_json())
    decode = launch.process("decode-0")
    seen = start_by_script(launch, 1, program=decode.argv[0], folder=tmp_path)
    told = value(decode, flag)
    assert (json.loads(told)["a"] if engine == "atom" else told) == word
    assert seen["argv"] == list(decode.argv[1:])
    assert seen["env"]["STEP"] == word
    assert not list(tmp_path.glob("made"))
