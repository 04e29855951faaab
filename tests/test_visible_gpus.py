"""GPUs that variables choose for servers: lists that can be read, of the planned length, there, and no two servers'."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from disagg_run import LaunchPlan, NodeFacts, ProcessSpec, RoleSpec, SpecError
from disagg_run.explain import explain
from disagg_run.gpu_lists import listed_gpus, same_gpu
from disagg_run.spec.model import RouterSpec
from tests import vllm_plans
from tests.engine_plans import PLANNED

ENGINES = sorted(PLANNED)
HIP, CUDA, ROCR = "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"


def roles(prefill: Mapping[str, str] | None = None, decode: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Two workers of four GPUs, with variables for each."""
    return {"prefill": RoleSpec(tp=4, env=prefill or {}), "decode": RoleSpec(tp=4, env=decode or {})}


def apart(engine: str = "atom", **fields: Any) -> LaunchPlan:
    """A plan in which each has a node of its own."""
    return PLANNED[engine](**{**roles(), **fields})


def shared(engine: str = "atom", **fields: Any) -> LaunchPlan:
    """A plan in which both are on one node."""
    return PLANNED[engine](**{**roles(), "pack": True, "nodes": 1, **fields})


@pytest.mark.parametrize(
    ("text", "gpus"),
    [
        ("0,1", ("0", "1")),
        ("7", ("7",)),
        ("07,3", ("7", "3")),
        ("", ()),
        (" ", ()),
        ("-1", ()),
        ("0,1,-1,2", ("0", "1")),
        ("GPU-8932f937,GPU-46abccd6", ("gpu-8932f937", "gpu-46abccd6")),
        ("MIG-GPU-1/2/3", ("mig-gpu-1/2/3",)),
    ],
)
def test_a_list_shows_what_runtimes_make_of_it(text: str, gpus: tuple[str, ...]) -> None:
    assert listed_gpus(text, blanks=True) == gpus
    assert listed_gpus(text, blanks=False) == gpus


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("0,1,1", "GPU 1 stands twice"),
        ("1,01", "GPU 1 stands twice"),
        ("GPU-ab,GPU-abcd", "GPU gpu-abcd stands twice"),
        ("0,,1", "'' is neither the index nor the UUID"),
        ("0,1,", "'' is neither"),
        ("all", "'all' is neither"),
        ("0-3", "'0-3' is neither"),
        ("0;1", "'0;1' is neither"),
        ("0,GPU-ab", "indexes stand beside UUIDs"),
        ("1.5", "'1.5' is neither"),
    ],
)
def test_a_list_that_runtimes_cut_short_in_silence_is_an_error(text: str, wrong: str) -> None:
    with pytest.raises(ValueError, match=wrong):
        listed_gpus(text, blanks=True)


def test_blanks_are_for_cuda_alone_and_a_uuid_may_be_cut() -> None:
    assert listed_gpus("0, 1 ,2", blanks=True) == ("0", "1", "2")
    with pytest.raises(ValueError, match="' 1' has a blank, which ends the list for HIP and ROCr"):
        listed_gpus("0, 1", blanks=False)
    assert same_gpu("gpu-ab", ["gpu-cd", "gpu-abcd"]) == "gpu-abcd"
    assert same_gpu("1", ["10", "11"]) == ""


@pytest.mark.parametrize("engine", ENGINES)
def test_a_server_alone_on_its_node_may_have_other_gpus_than_the_first_and_the_plan_says_so(engine: str) -> None:
    for name in (HIP, ROCR, CUDA):
        launch = apart(engine, env={name: "4,5,6,7"})
        for process in ("prefill-0", "decode-0"):
            assert launch.process(process).env[name] == "4,5,6,7"
            assert launch.process(process).gpus == (4, 5, 6, 7)
    assert apart(engine, env={HIP: "GPU-a,GPU-b,GPU-c,GPU-d"}).process("decode-0").gpus == (0, 1, 2, 3)
    assert apart(engine, env={HIP: "0,1,2,3"}).process("decode-0").gpus == (0, 1, 2, 3)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", [HIP, ROCR])
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("0,1", "which shows it 2 GPUs, but the plan gives it 4: name 4, or let it"),
        ("0,1,2,3,4,5,6,7", "which shows it 8 GPUs, but the plan gives it 4"),
        ("0,1,-1,2,3", "which shows it 2 GPUs"),
        ("0", "which shows it 1 GPU, but"),
        ("", "which shows it no GPUs, but"),
        ("-1", "which shows it no GPUs, but"),
        ("4,5,6,6", "in which GPU 6 stands twice"),
        ("4,5,6,x", "in which 'x' is neither the index nor the UUID of a GPU: write indexes like 0,1,2,3"),
        ("4, 5, 6, 7", "in which ' 5' has a blank"),
    ],
)
def test_a_list_that_does_not_fit_the_process_is_refused(engine: str, name: str, text: str, said: str) -> None:
    with pytest.raises(SpecError) as caught:
        apart(engine, env={name: text})
    assert str(caught.value).startswith(f"prefill-0 is given {name}={text!r} (Python LaunchSpec), ")
    assert said in str(caught.value)
    assert "or let it through with --waive gpu-visibility" in str(caught.value)
    waived = apart(engine, env={name: text}, waive=["gpu-visibility"])
    assert waived.process("decode-0").env[name] == text


@pytest.mark.parametrize("engine", ENGINES)
def test_two_servers_of_a_node_do_not_see_the_same_gpu(engine: str) -> None:
    with pytest.raises(SpecError) as caught:
        shared(engine, env={HIP: "0,1,2,3"})
    assert str(caught.value) == (
        "two servers of rank 0 (10.0.0.1) see GPU 0, 1, 2, 3: prefill-0 with HIP_VISIBLE_DEVICES='0,1,2,3' (Python"
        " LaunchSpec) and decode-0 with HIP_VISIBLE_DEVICES='0,1,2,3' (Python LaunchSpec): give each GPUs of"
        " its own, or leave the variable out: the plan chooses them, or let it through with --waive gpu-visibility"
    )
    with pytest.raises(SpecError, match=r"see GPU 4: prefill-0 with .*'1,2,3,4' .* and decode-0 with .*'4,5,6,7'"):
        shared(engine, **roles(prefill={HIP: "1,2,3,4"}))
    with pytest.raises(SpecError, match="see GPU gpu-a1"):
        shared(engine, **roles({HIP: "GPU-a,GPU-b,GPU-c,GPU-d"}, {HIP: "GPU-a1,GPU-e,GPU-f,GPU-g"}))
    with pytest.raises(SpecError, match=r"nobody can tell whether two servers .* name the GPUs of both by index"):
        shared(engine, **roles(prefill={HIP: "GPU-a,GPU-b,GPU-c,GPU-d"}))
    assert shared(engine, env={HIP: "0,1,2,3"}, waive=["gpu-visibility"]).process("decode-0").env[HIP] == "0,1,2,3"


@pytest.mark.parametrize("engine", ENGINES)
def test_servers_of_a_node_may_swap_halves_or_be_named_by_uuid(engine: str) -> None:
    launch = shared(engine, **roles({HIP: "4,5,6,7"}, {HIP: "0,1,2,3"}))
    assert (launch.process("prefill-0").gpus, launch.process("decode-0").gpus) == ((4, 5, 6, 7), (0, 1, 2, 3))
    assert shared(engine, **roles({HIP: "GPU-a,GPU-b,GPU-c,GPU-d"}, {HIP: "GPU-e,GPU-f,GPU-g,GPU-h"})).bound
    assert shared(engine).process("decode-0").gpus == (4, 5, 6, 7)


def test_a_plan_tells_who_chose_the_gpus() -> None:
    for launch, source in ((shared(), "the first free GPUs of its node"), (apart(env={ROCR: "4,5,6,7"}), "LaunchSpec")):
        (found,) = explain(launch, "decode-0:gpus")
        assert (found.value, str(found.source).endswith(source)) == ("4,5,6,7", True)


def test_a_process_by_name_is_held_as_a_role_is() -> None:
    with pytest.raises(SpecError, match="see GPU 0, 1, 2, 3: prefill-0"):
        shared(processes={"decode-0": ProcessSpec(env={HIP: "0,1,2,3"})})


def test_gpus_that_the_node_is_known_not_to_have_are_refused() -> None:
    facts = dict.fromkeys((0, 1), NodeFacts(gpus=8, gpu_vendor="amd"))
    with pytest.raises(
        SpecError, match=r"'5,6,7,8' .*, but rank 0 \(10\.0\.0\.1\) has GPUs 0 to 7: name some of those"
    ):
        apart(env={HIP: "5,6,7,8"}, facts=facts)
    assert apart(env={HIP: "4,5,6,7"}, facts=facts).bound
    assert apart(env={HIP: "5,6,7,8"}).bound
    assert apart(env={HIP: "5,6,7,8"}, facts=facts, simulate=True).bound


def test_what_nvidia_s_runtime_does_not_read_is_refused_there_and_blanks_are_taken() -> None:
    facts = dict.fromkeys((0, 1), NodeFacts(gpus=8, gpu_vendor="nvidia"))
    with pytest.raises(SpecError, match="which NVIDIA's runtime does not read: use CUDA_VISIBLE_DEVICES"):
        apart("vllm", env={HIP: "4,5,6,7"}, facts=facts, connector="vllm-nixl")
    launch = apart("vllm", env={CUDA: "4, 5, 6, 7"}, facts=facts, connector="vllm-nixl")
    assert launch.process("prefill-0").gpus == (4, 5, 6, 7)
    amd = dict.fromkeys((0, 1), NodeFacts(gpus=8, gpu_vendor="amd"))
    with pytest.raises(SpecError, match="' 5' has a blank"):
        apart(env={CUDA: "4, 5, 6, 7"}, facts=amd)


def test_a_secret_does_not_choose_gpus() -> None:
    with pytest.raises(
        SpecError, match=r"HIP_VISIBLE_DEVICES of prefill-0 is a secret .*, so that nobody sees which GPUs"
    ):
        shared(secrets=[HIP])
    assert HIP in apart(secrets=[HIP], waive=["gpu-visibility"]).process("prefill-0").secrets


def test_the_router_and_servers_that_compute_on_the_processor_are_not_held() -> None:
    assert apart(router=RouterSpec(env={HIP: "0"})).process("router").env[HIP] == "0"
    for text in ("", "-1", "0"):
        launch = vllm_plans.planned(
            **roles(), connector="vllm-nixl", settings={"device": "cpu"}, pack=True, nodes=1, env={CUDA: text}
        )
        assert launch.process("decode-0").env[CUDA] == text
