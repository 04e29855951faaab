"""Which patches a plan carries, for which version, and what a plan refuses."""

from __future__ import annotations

import attrs
import pytest

from disagg_run.errors import ConflictError, PatchError, SpecError
from disagg_run.patching import named_patches, planned_as, select_patches
from disagg_run.records import Edit
from tests.patching.toy import ALL, FINISH, REAPER, WAIT, edited


def ids(patches: object) -> list[str]:
    return [patch.id for patch in patches]  # type: ignore[attr-defined]


def test_a_patch_comes_with_what_it_requires_and_after_it() -> None:
    selected = select_patches(ALL, ["toy-reaper"], "1.2")
    assert ids(selected.patches) == ["toy-finish", "toy-reaper"]
    assert selected.patches == select_patches(tuple(reversed(ALL)), ["toy-reaper", "toy-finish"], "1.2").patches


def test_a_set_names_all_its_members() -> None:
    assert ids(named_patches(ALL, ["bounds"])) == ["toy-finish", "toy-wait"]


def test_an_unknown_name_is_an_error_with_the_nearest() -> None:
    with pytest.raises(SpecError, match=r"there is no patch or set 'toy-weit': did you mean 'toy-wait'\?"):
        select_patches(ALL, ["toy-weit"], "1.2")


def test_a_patch_that_the_version_does_not_need_stays_without_edits_and_says_what_does_it_instead() -> None:
    selected = select_patches(ALL, ["bounds"], "2.1")
    found = {patch.id: patch for patch in selected.patches}
    assert found["toy-wait"].edits == ()
    assert found["toy-wait"].planned_for == "2.1"
    assert planned_as(found["toy-wait"]) == "toy-wait (not needed, the setting --wait-timeout)"
    assert planned_as(found["toy-finish"]) == "toy-finish (source patch)"
    assert selected.left_out == ()


def test_a_plan_carries_the_edits_of_its_version_alone_and_is_then_for_that_version_alone() -> None:
    edits = [attrs.evolve(WAIT.edits[0], versions="<1.1"), attrs.evolve(WAIT.edits[0], versions=">=1.1")]
    (patch,) = select_patches([edited(WAIT, edits=edits)], ["toy-wait"], "1.2+rocm").patches
    assert len(patch.edits) == 1
    assert patch.versions == "==1.2"
    (same_everywhere,) = select_patches([WAIT], ["toy-wait"], "1.2").patches
    assert same_everywhere.versions == WAIT.versions


def test_a_version_says_nothing_of_another_package() -> None:
    other = edited(WAIT, package=["tool"], versions=">=7", fixed_in="9")
    (patch,) = select_patches([other], ["toy-wait"], "1.2", distributions=["toy"]).patches
    assert (patch.planned_for, patch.edits) == ("", other.edits)


def test_a_required_patch_outside_its_versions_is_refused_and_an_optional_one_left_out() -> None:
    with pytest.raises(PatchError, match=r"patch 'toy-wait' is not for version 0\.9: it is made for toy >=1\.0,<2\.0"):
        select_patches(ALL, ["toy-wait"], "0.9")
    optional = edited(WAIT, required=False)
    selected = select_patches([optional], ["toy-wait"], "0.9")
    assert selected.patches == ()
    assert selected.left_out == (
        "the optional patch 'toy-wait' is left out: it is made for toy >=1.0,<2.0, not for version 0.9",
    )


def test_what_builds_on_an_optional_patch_that_is_left_out_is_left_out_or_refused() -> None:
    base = edited(FINISH, versions=">=3", required=False)
    selected = select_patches([base, edited(REAPER, required=False)], ["toy-reaper"], "1.2")
    assert selected.patches == ()
    assert selected.left_out[1] == "the optional patch 'toy-reaper' is left out: it requires one that is left out"
    last = edited(WAIT, requires=["toy-reaper"], required=False)
    assert select_patches([base, edited(REAPER, required=False), last], ["toy-wait"], "1.2").patches == ()
    with pytest.raises(PatchError, match="'toy-reaper' requires 'toy-finish', which is not for this version"):
        select_patches([base, REAPER], ["toy-reaper"], "1.2")


def test_two_different_patches_of_one_id_are_an_error() -> None:
    with pytest.raises(ConflictError, match="two different patches are called 'toy-wait'"):
        select_patches([WAIT, edited(WAIT, why="Another.")], ["toy-wait"], "1.2")
    assert ids(select_patches([WAIT, WAIT], ["toy-wait"], "1.2").patches) == ["toy-wait"]


OTHER = edited(
    WAIT,
    id="toy-other",
    edits=[
        Edit(
            scope="Server.wait",
            by="statements",
            anchor="while True:\n  if peer in self.ready:\n    break\n  continue",
            replacement="pass",
        )
    ],
)


@pytest.mark.parametrize(
    "other",
    [
        OTHER,
        edited(OTHER, edits=[Edit(scope="Server", anchor="if peer in self.ready:\n", replacement="x")]),
        edited(OTHER, edits=[Edit(anchor="                break\n            continue\n", replacement="x")]),
    ],
)
def test_two_patches_for_one_place_are_refused_when_planned(other: object) -> None:
    with pytest.raises(PatchError, match=r"patches 'toy-other' and 'toy-wait' change the same place of toy/server\.py"):
        select_patches([WAIT, other], ["toy-wait", "toy-other"], "1.2")  # type: ignore[list-item]


def test_patches_of_two_functions_with_one_text_are_no_overlap() -> None:
    elsewhere = edited(OTHER, edits=[attrs.evolve(OTHER.edits[0], scope="Server.other")])
    assert len(select_patches([WAIT, elsewhere], ["toy-wait", "toy-other"], "1.2").patches) == 2
