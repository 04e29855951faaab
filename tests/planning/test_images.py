"""What is asked of containers: images whose tag says another version, odd images, odd mounts."""

from __future__ import annotations

from typing import Any

import pytest

from disagg_run import LaunchPlan, Mount, PlanError, SpecError, plan
from disagg_run.host import build_host
from disagg_run.mounts import read_mount
from disagg_run.spec.reading import read_spec
from tests.engine_plans import PLANNED, TYPED, typed
from tests.planning.toy import HOST, spec

MODELS = {"sglang": "lmsysorg/sglang:latest", "vllm": "vllm/vllm-openai:latest", "atom": "rocm/atom:latest"}


def contained(engine: str, **more: Any) -> LaunchPlan:
    return PLANNED[engine](image=MODELS[engine], **more)


@pytest.mark.parametrize(
    ("image", "version", "warned"),
    [
        ("toy/toy:v1.8.0", "1.21.0", True),
        ("toy/toy:v1.21.0-cu130@sha256:12", "1.21.0", False),
        ("toy/toy:v1.21.0", "1.21.0+rocm", False),
        ("toy/toy:v1.21.0", "1.21.0.post1", True),
        ("toy/toy:v1.21", "1.21.3", False),
        ("toy/toy:v1.21", "1.22.0", True),
        ("toy/toy:1.8.0", "1.21.0", True),
        ("reg:5000/toy", "1.21.0", False),
        ("toy/toy:rocm7.2.0-nightly", "1.21.0", False),
        (None, "1.21.0", False),
    ],
)
def test_an_image_whose_tag_says_another_version_is_warned_of(image: str | None, version: str, warned: bool) -> None:
    made = plan(spec(image=image, engine_version=version, sources={"engine_version": TYPED}), host=HOST)
    said = [remark.message for remark in made.warnings if "the tag of image" in remark.message]
    assert bool(said) == warned
    if warned:
        assert said[0].startswith(f"the plan is for version {version} (Python --args), but the tag of image")
    assert made.engine_version == version


@pytest.mark.parametrize("option", ["image", "router.image"])
@pytest.mark.parametrize("image", ["-v", "--privileged", "a b", "a\tb"])
def test_what_no_container_tool_would_take_for_an_image_is_refused(option: str, image: str) -> None:
    words = {"engine": "vllm-disagg", "model": "m", option: image}
    with pytest.raises(SpecError, match=r"is no image: a reference has no blanks|holds a control character"):
        read_spec(options=words, recipe=None, environ={}, host=build_host())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("data:/data", "is no mount: write /HOST:/INSIDE"),
        ("./data", "is no mount: write /HOST:/INSIDE"),
        ("/data:in", "is no mount: write /HOST:/INSIDE"),
        ("/a/../b:/b", "goes up by .., write the path that is meant"),
        ("/b:/a/..", "goes up by .., write the path that is meant"),
        ("/data:/", "would hide all that is in the image"),
        ("/", "would hide all that is in the image"),
        ("/./:/.", "would hide all that is in the image"),
    ],
)
def test_a_mount_that_cannot_be_meant_is_refused(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        read_mount(text)


def test_the_paths_of_a_mount_have_one_spelling() -> None:
    assert read_mount("//data//x/./y/:/in/.//z:ro") == Mount(source="/data/x/y", target="/in/z", read_only=True)
    with pytest.raises(SpecError, match="'/a' and '/b' are both to be mounted at '/in'"):
        contained("vllm", mounts=["/a:/in", "/b://in/"])


@pytest.mark.parametrize("engine", sorted(PLANNED))
@pytest.mark.parametrize("mount", ["/:/host", "/tmp:/host-tmp", "/opt:/host-opt"])
def test_what_plugins_set_are_places_inside_whatever_is_mounted(engine: str, mount: str) -> None:
    launch = contained(engine, mounts=[mount])
    container = launch.ranks[0].groups[0].container
    assert container is not None
    assert mount.partition(":")[2] in {each.target for each in container.needs.mounts}


def test_what_a_user_gives_is_held_to_what_is_mounted() -> None:
    by_hand = {"args": [typed("--tokenizer", "/opt/tokenizer")], "mounts": ["/opt:/host-opt"]}
    with pytest.raises(PlanError, match=r"--tokenizer of prefill-0 names '/opt/tokenizer'.*write '/host-opt/tok"):
        contained("vllm", **by_hand)
    with pytest.raises(PlanError, match=r"variable CACHE of prefill-0 names '/opt/cache'.*write '/host-opt/cache'"):
        contained("vllm", env={"CACHE": "/opt/cache"}, mounts=["/opt:/host-opt"])
    # A root of the host within the container says nothing of a path: it may be one of the image.
    contained("vllm", env={"CACHE": "/opt/cache"}, mounts=["/:/host"])


def test_a_mount_over_the_model_s_own_path_is_refused() -> None:
    with pytest.raises(PlanError, match="are both to be mounted at '/models/"):
        contained("vllm", mounts=["/x:/models/Kimi-K2.5-MXFP4"])
