"""Patches in a plan: carried whole, applied where there is no plugin, a reason to stop before anything starts."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Iterable
from pathlib import Path

import attrs
import pytest

from disagg_run import Extension, LaunchPlan, LaunchSpec, Patch, RankContext, hookimpl, plan
from disagg_run.errors import PatchError, SpecError
from disagg_run.patching import PatchesRefused, apply_patches, ledgers, revert_patches
from disagg_run.patching.manifest import MANIFEST, Manifest, read_manifest
from disagg_run.planning.document import Group, PlannedProcess
from disagg_run.render import render_table
from disagg_run.running import carried_patches
from tests.patching.toy import ALL, FINISH, SERVER, WAIT, by_state, edited, install
from tests.planning.toy import toy_host
from tests.running.launched import Launched
from tests.running.plans import addresses
from tests.running.plans import plan as running_plan


class ToyPatches:
    """A patch plugin."""

    name = "toy-patches"

    def __init__(self, patches: Iterable[Patch] = ALL) -> None:
        self.patches = tuple(patches)

    @hookimpl
    def disagg_plugin(self) -> Extension:
        return Extension(
            name="toy-patches", summary="bounds", kind="patches", engines=("toy-disagg",), patch_sets=("bounds",)
        )

    @hookimpl
    def disagg_patches(self, ctx: RankContext) -> Iterable[Patch]:
        return self.patches


def planned(*names: str, patches: Iterable[Patch] = ALL, **fields: object) -> LaunchPlan:
    spec = LaunchSpec(engine="toy-disagg", model="toy-model", patches=names, **fields)  # type: ignore[arg-type]
    return plan(spec, host=toy_host(ToyPatches(patches)))


def carried(launch: LaunchPlan) -> list[str]:
    return [patch.id for patch in launch.ranks[0].groups[0].patches]


def test_no_patch_is_in_a_plan_that_names_none() -> None:
    assert carried(planned()) == []


def test_a_plan_carries_the_edits_so_that_a_node_needs_no_plugin(tmp_path: Path) -> None:
    launch = planned("bounds", "toy-reaper", patch_waiver="ticket 7")
    assert carried(launch) == ["toy-finish", "toy-reaper", "toy-wait"]
    read = LaunchPlan.from_json(launch.to_json())
    assert read == launch
    root = install(tmp_path / "site")
    states = apply_patches(read.ranks[0].groups[0].patches, target=root)
    assert set(by_state(states).values()) == {"applied"}
    assert {state.waiver for state in ledgers([root])[0].patches} == {"ticket 7"}


def test_the_table_says_what_is_patched_and_what_is_set_instead() -> None:
    table = render_table(planned("bounds", engine_version="2.0"))
    assert "patch      toy-finish (source patch)" in table
    assert "patch      toy-wait (not needed, the setting --wait-timeout)" in table


def test_an_optional_patch_that_a_plan_goes_without_is_a_warning_of_the_plan() -> None:
    launch = planned("toy-wait", patches=[edited(WAIT, required=False, versions=">=1.5,<2.0")], engine_version="1.2")
    assert carried(launch) == []
    (warning,) = [each for each in launch.warnings if "toy-wait" in each.message]
    assert warning.message.startswith("the optional patch 'toy-wait' is left out: it is made for toy >=1.5,<2.0")


def test_an_unknown_patch_is_refused_when_planned() -> None:
    with pytest.raises(SpecError, match="did you mean 'toy-wait'"):
        planned("toy-wate")


def test_B71_a_ledger_says_what_was_changed_why_and_under_which_waiver(tmp_path: Path) -> None:
    """Fault B71: a benchmark forbids changes to the engine without a filed waiver."""
    root = install(tmp_path / "site")
    apply_patches([WAIT], target=root, waiver="https://example.org/waivers/3")
    (ledger,) = ledgers([root])
    (entry,) = ledger.patches
    assert (entry.id, entry.why, entry.upstream) == ("toy-wait", WAIT.why, WAIT.upstream)
    assert entry.waiver == "https://example.org/waivers/3"
    (file,) = entry.files
    assert (file.file, file.path) == ("toy/server.py", str(root / "toy/server.py"))
    assert file.before != file.after
    revert_patches([root])
    assert ledgers([root]) == ()


def test_B71_where_patches_are_forbidden_a_plan_that_would_apply_one_fails() -> None:
    """Fault B71: policy no-patches."""
    with pytest.raises(
        PatchError, match="source patches are forbidden here, and 'toy-finish', 'toy-wait' would change"
    ):
        planned("bounds", forbid_patches=True)
    # A wish that the version grants by a setting changes no source.
    assert carried(planned("toy-wait", forbid_patches=True, engine_version="2.0")) == ["toy-wait"]


def test_B71_a_second_patch_for_one_place_never_hides_the_first(tmp_path: Path) -> None:
    """Fault B71: a diff rewrote the lines that a second patcher looked for, which then did nothing and logged it."""
    root = install(tmp_path / "site")
    second = edited(WAIT, id="toy-second", edits=[attrs.evolve(WAIT.edits[0], replacement="return\n")])
    with pytest.raises(PatchError, match="change the same place"):
        planned("toy-wait", "toy-second", patches=[WAIT, second])
    # One after the other on the same installation, and in either order.
    for first, other in ((WAIT, second), (second, WAIT)):
        apply_patches([first], target=root)
        with pytest.raises(PatchError, match=r"'toy-\w+' and 'toy-\w+' change the same place of toy/server\.py"):
            apply_patches([other], target=root)
        revert_patches([root])
    assert (root / "toy/server.py").read_text() == SERVER
    # A diff by somebody else: the patch stops the run instead of doing nothing.
    (root / "toy/server.py").write_text(SERVER.replace("if peer in self.ready", "if peer in self.peers"))
    with pytest.raises(PatchesRefused, match="does not match"):
        apply_patches([WAIT], target=root)


def interpreter(tmp_path: Path, root: Path) -> Path:
    """A Python that imports the toy package, as an engine's image has one."""
    path = tmp_path / "bin" / "python3"
    path.parent.mkdir()
    path.write_text(f'#!/bin/sh\nPYTHONPATH={shlex.quote(str(root))} exec {shlex.quote(sys.executable)} "$@"\n')
    path.chmod(0o755)
    return path


def launch_of(tmp_path: Path, root: Path, patches: Iterable[Patch]) -> tuple[LaunchPlan, Path]:
    """A real plan of one rank whose server leaves a mark and ends, and the mark."""
    mark = tmp_path / "started"
    python = str(interpreter(tmp_path, root))
    code = "import pathlib, sys; from toy import server; pathlib.Path(sys.argv[1]).write_text(server.__file__)"
    server = PlannedProcess(name="prefill-0", kind="server", role="prefill", argv=(python, "-c", code, str(mark)))
    launch = running_plan([(addresses(1)[0], [server])], simulated=False)
    group = Group(processes=[server], patches=patches)
    return attrs.evolve(launch, ranks=[attrs.evolve(launch.ranks[0], groups=[group])]), mark


def test_a_run_warns_of_patches_from_before_that_its_plan_does_not_name(tmp_path: Path) -> None:
    root = install(tmp_path / "site")
    apply_patches([FINISH, WAIT], target=root)
    launch, mark = launch_of(tmp_path, root, planned("toy-wait").ranks[0].groups[0].patches)
    launched = Launched(launch, tmp_path / "launch")
    launched.process.wait(30)
    assert mark.exists()
    (event,) = [event for event in launched.events(0) if event["event"] == "preflight.warning"]
    assert event["what"].startswith(f"{root} carries source patches that the plan does not name: 'toy-finish';")
    assert f"disagg-run patches revert --python {tmp_path}/bin/python3" in event["what"]


def test_B71_a_plan_that_forbids_patches_does_not_run_on_an_engine_that_carries_one(tmp_path: Path) -> None:
    """Fault B71: policy no-patches, and an installation that an earlier run has patched."""
    root = install(tmp_path / "site")
    apply_patches([WAIT], target=root)
    planned_group = planned(forbid_patches=True).ranks[0].groups[0]
    assert planned_group.forbid_patches
    launch, mark = launch_of(tmp_path, root, planned_group.patches)
    (group,) = launch.ranks[0].groups
    group = attrs.evolve(group, forbid_patches=True)
    launch = attrs.evolve(launch, ranks=[attrs.evolve(launch.ranks[0], groups=[group])])
    assert LaunchPlan.from_json(launch.to_json()).ranks[0].groups[0].forbid_patches
    launched = Launched(launch, tmp_path / "launch")
    assert launched.end() == PatchError.exit_code
    assert f"the plan forbids source patches, and {root} carries 'toy-wait'" in launched.text()
    assert not mark.exists()


def test_a_change_that_was_not_finished_stops_a_run_that_would_not_finish_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = install(tmp_path / "site")
    apply_patches([WAIT], target=root)
    # As a kill of all that was at work leaves it, between the first and the last rename.
    (root / MANIFEST).write_text(Manifest(pending=read_manifest(root)).to_json())
    monkeypatch.setattr(carried_patches, "PATIENCE_S", 0.1)
    launch, _ = launch_of(tmp_path, root, ())
    (group,) = launch.ranks[0].groups
    python = str(tmp_path / "bin/python3")
    warnings: list[str] = []
    with pytest.raises(PatchError, match="a change was begun and not finished") as refusal:
        carried_patches.check_carried(group, python, warnings.append)
    assert f"disagg-run patches revert --python {python}" in str(refusal.value)
    # Its own patches finish it.
    carried_patches.check_carried(attrs.evolve(group, patches=[WAIT]), python, warnings.append)
    assert warnings == []


def test_a_required_patch_that_does_not_match_stops_the_run_before_any_process(tmp_path: Path) -> None:
    root = install(tmp_path / "site", "1.2", server=SERVER.replace("if peer in", "if peer not in"))
    launch, mark = launch_of(tmp_path, root, planned("toy-wait").ranks[0].groups[0].patches)
    launched = Launched(launch, tmp_path / "launch")
    assert launched.end() == PatchError.exit_code
    for part in ("toy-wait", "toy 1.2", "toy/server.py", "upstream: from toy 2.0 on: the wait has a bound"):
        assert part in launched.text()
    assert not mark.exists()
    events = launched.events(0)
    assert not [event for event in events if event["event"] == "process.started"]
    (state,) = [event for event in events if event["event"] == "patch.state"]
    assert (state["patch"], state["state"]) == ("toy-wait", "does not match")


def test_a_run_patches_first_and_keeps_the_ledger_among_its_events(tmp_path: Path) -> None:
    root = install(tmp_path / "site")
    launch, mark = launch_of(tmp_path, root, planned("toy-finish", patch_waiver="ticket 7").ranks[0].groups[0].patches)
    launched = Launched(launch, tmp_path / "launch")
    launched.process.wait(30)
    assert mark.read_text() == str(root / "toy/server.py")
    (event,) = [event for event in launched.events(0) if event["event"] == "patch.state"]
    assert (event["patch"], event["state"], event["waiver"]) == ("toy-finish", "applied", "ticket 7")
    assert event["why"] == FINISH.why
    assert event["files"][0]["before"] != event["files"][0]["after"]
    json.dumps(event)
    assert os.path.exists(root / "disagg-run-patches.json")
