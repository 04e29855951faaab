"""One wish for MoRI-IO, granted by a source patch or by a setting: the plan says which."""

from __future__ import annotations

import math

import pytest

from disagg_run import LaunchPlan
from disagg_run.errors import PatchError, PlanError, SpecError
from disagg_vllm.patches_moriio import BOUNDS, asked_for, offered
from tests.patching.moriio import EXPECTED, MORIIO, PATCHED, bounds, planned

ASKED = {"moriio_transfer_timeout_s": 45.0, "moriio_defer_timeout_s": 90.0}


@pytest.mark.parametrize("version", EXPECTED)
def test_the_same_wish_is_a_patch_or_a_setting_with_the_bound_that_was_asked_for(version: str) -> None:
    launch = planned(version, "moriio", settings=ASKED)
    said = {
        patch.id: "applied" if patch.edits else "setting instead" if patch.instead else "not needed"
        for patch in launch.ranks[0].groups[0].patches
    }
    assert said == EXPECTED[version]
    for process in ("prefill-0", "decode-0"):
        variables, settings = bounds(launch, process)
        if version in PATCHED:
            assert variables == {"DISAGG_MORIIO_TRANSFER_TIMEOUT_S": "45", "DISAGG_MORIIO_DEFER_TIMEOUT_S": "90"}
            assert settings == {}
        else:
            assert variables == {}
            assert settings == {"transfer_timeout": 45.0, "defer_timeout": 90.0}
    assert LaunchPlan.from_json(launch.to_json()) == launch


def test_a_plan_that_names_no_patch_has_neither() -> None:
    for version in ("0.21.0", "0.32.0"):
        launch = planned(version)
        assert launch.ranks[0].groups[0].patches == ()
        assert bounds(launch, "prefill-0") == ({}, {})


@pytest.mark.parametrize(
    ("version", "name", "found"),
    [
        ("0.21.0", "moriio-load-kv-timeout", ({"DISAGG_MORIIO_TRANSFER_TIMEOUT_S": "30"}, {})),
        ("0.21.0", "prefill-idle-kv-reaper", ({"DISAGG_MORIIO_DEFER_TIMEOUT_S": "60"}, {})),
        ("0.21.0", "scheduler-read-mode-fix", ({}, {})),
        ("0.23.0", "moriio-save-kv-timeout", ({}, {"transfer_timeout": 30.0})),
        ("0.32.0", "prefill-idle-kv-reaper", ({}, {"defer_timeout": 60.0})),
        ("0.32.0", "moriio-transfer-timeout", ({}, {"transfer_timeout": 30.0, "defer_timeout": 60.0})),
    ],
)
def test_a_single_wish_brings_its_own_bound_alone(version: str, name: str, found: object) -> None:
    assert bounds(planned(version, name), "prefill-0") == found


def test_the_reaper_brings_the_patch_that_it_builds_on() -> None:
    patches = planned("0.21.0", "prefill-idle-kv-reaper").ranks[0].groups[0].patches
    assert [patch.id for patch in patches] == ["scheduler-read-mode-fix", "prefill-idle-kv-reaper"]


@pytest.mark.parametrize(("version", "says"), [("0.21.0", "is patched in"), ("0.30.0", "is a setting of")])
def test_the_source_of_a_bound_says_which_patch_asks_for_it_and_who_set_it(version: str, says: str) -> None:
    launch = planned(version, "moriio", settings=ASKED)
    assert launch.sources is not None
    text = launch.sources.to_json(launch.digest)
    assert f"patch moriio-load-kv-timeout, which {says} vLLM {version}" in text


@pytest.mark.parametrize("value", [0.0, -1.0, 1e-9, 604801.0, 1e300, math.inf, math.nan])
def test_a_bound_that_is_no_time_is_refused(value: float) -> None:
    for version in ("0.21.0", "0.30.0"):
        with pytest.raises(
            SpecError, match=r"moriio_transfer_timeout_s is .*: give a number of seconds between 0\.001"
        ):
            planned(version, "moriio", settings={"moriio_transfer_timeout_s": value})


@pytest.mark.parametrize(("value", "text"), [(45.123456789, "45.123456789"), (120.0, "120"), (604800.0, "604800")])
def test_patched_code_is_told_every_digit_of_a_bound(value: float, text: str) -> None:
    launch = planned("0.21.0", "moriio", settings={"moriio_transfer_timeout_s": value})
    assert launch.process("prefill-0").env["DISAGG_MORIIO_TRANSFER_TIMEOUT_S"] == text


def test_bounds_for_moriio_beside_another_connector_are_refused() -> None:
    with pytest.raises(PlanError, match="is for the connector vllm-moriio, and the plan has vllm-nixl"):
        planned("0.30.0", "moriio", connector="vllm-nixl")
    patches = planned("0.30.0", "nixl", connector="vllm-nixl").ranks[0].groups[0].patches
    assert [patch.id for patch in patches] == ["nixl-ucx-error-mode"]
    # NIXL has versions of its own: the node settles which edits are meant.
    assert patches[0].planned_for == ""


def test_B71_a_release_with_settings_grants_the_bounds_where_patches_are_forbidden() -> None:
    """Fault B71: policy no-patches."""
    assert bounds(planned("0.32.0", "moriio", forbid_patches=True), "decode-0")[1]
    with pytest.raises(PatchError, match="source patches are forbidden here"):
        planned("0.21.0", "moriio", forbid_patches=True)


def test_every_patch_says_why_where_and_since_when_not() -> None:
    assert len(MORIIO) == 5
    assert set(BOUNDS) < {patch.id for patch in MORIIO}
    assert [patch.id for patch in asked_for(["nixl"])] == ["nixl-ucx-error-mode"]
    for patch in offered():
        assert patch.why.endswith(".")
        assert patch.upstream.startswith("https://")
        assert patch.required
        # Whoever reads the engine's file finds out whose change it is.
        assert any(f"disagg-run {patch.id}" in edit.replacement for edit in patch.edits)
        if patch in MORIIO:
            assert patch.fixed_in
            assert patch.fixed_by
