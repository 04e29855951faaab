"""The life of a patch on an installed package: applied once, recognised, taken back, refused where it must be."""

from __future__ import annotations

import itertools
import os
import py_compile
import subprocess
import sys
from pathlib import Path

import attrs
import pytest

from disagg_run.errors import PatchError
from disagg_run.patching import (
    PatchesRefused,
    apply_patches,
    check_patches,
    find_site,
    preview,
    revert_patches,
)
from disagg_run.patching.manifest import BACKUP_SUFFIX, MANIFEST
from disagg_run.patching.ordering import in_order
from disagg_run.records import Edit, FileDigest, Patch
from tests.patching.toy import ALL, FINISH, LOOP, REAPER, SERVER, WAIT, by_state, digests, edited, install, sources


def test_applied_once_then_recognised_then_taken_back_to_the_byte(root: Path) -> None:
    before = digests(root)
    assert set(by_state(check_patches(ALL, target=root)).values()) == {"applicable"}
    assert digests(root) == before
    assert set(by_state(apply_patches(ALL, target=root)).values()) == {"applied"}
    patched = digests(root)
    assert patched["toy/server.py"] != before["toy/server.py"]
    assert set(by_state(apply_patches(ALL, target=root)).values()) == {"already applied"}
    assert digests(root) == patched
    assert set(by_state(revert_patches([root])).values()) == {"reverted"}
    assert digests(root) == before
    assert revert_patches([root]) == ()


def test_the_order_of_application_leaves_no_trace(tmp_path: Path) -> None:
    results = set()
    for number, order in enumerate(itertools.permutations(ALL)):
        if order.index(REAPER) < order.index(FINISH):
            continue
        root = install(tmp_path / str(number))
        for patch in order:
            apply_patches([FINISH, REAPER] if patch is REAPER else [patch], target=root)
        results.add(tuple(sources(root).items()))
        for patch in reversed(order):
            revert_patches([root], [patch.id])
        assert (root / "toy/server.py").read_text() == SERVER
        assert (root / "toy/loop.py").read_text() == LOOP
    assert len(results) == 1


def test_a_patch_can_be_taken_back_from_under_others(root: Path) -> None:
    apply_patches(ALL, target=root)
    revert_patches([root], ["toy-wait"])
    left = sources(root)
    revert_patches([root])
    apply_patches([FINISH, REAPER], target=root)
    assert sources(root) == left


def test_mode_time_and_compiled_form_come_back_with_the_bytes(root: Path) -> None:
    file = root / "toy/server.py"
    file.chmod(0o640)
    os.utime(file, ns=(1_600_000_000_123_456_789, 1_600_000_000_123_456_789))
    apply_patches([WAIT], target=root)
    patched = file.stat()
    assert patched.st_mode & 0o7777 == 0o640
    assert int(patched.st_mtime) != 1_600_000_000
    revert_patches([root])
    assert file.stat().st_mtime_ns == 1_600_000_000_123_456_789
    assert file.stat().st_mode & 0o7777 == 0o640


def test_a_file_that_other_names_share_keeps_its_bytes_there(root: Path, tmp_path: Path) -> None:
    # Installers such as uv and conda link files from a cache that all environments share.
    os.link(root / "toy/server.py", tmp_path / "cached.py")
    apply_patches([WAIT], target=root)
    assert (tmp_path / "cached.py").read_text() == SERVER


@pytest.mark.parametrize("mode", ["TIMESTAMP", "CHECKED_HASH", "UNCHECKED_HASH"])
def test_a_new_process_runs_the_patched_code_whatever_was_compiled_before(root: Path, mode: str) -> None:
    file = root / "toy/server.py"
    same_size = edited(
        FINISH, edits=[Edit(anchor='"""A server that waits."""', replacement='"""A server that waitz."""')]
    )

    def doc() -> str:
        code = "import sys; sys.path.insert(0, sys.argv[1]); import toy.server; print(toy.server.__doc__)"
        done = subprocess.run([sys.executable, "-c", code, str(root)], capture_output=True, text=True, check=True)
        return done.stdout.strip()

    py_compile.compile(str(file), invalidation_mode=getattr(py_compile.PycInvalidationMode, mode), doraise=True)
    assert doc() == "A server that waits."
    apply_patches([same_size], target=root)
    assert doc() == "A server that waitz."
    revert_patches([root])
    assert doc() == "A server that waits."


def test_an_optional_patch_that_does_not_match_is_left_out_with_those_that_build_on_it(root: Path) -> None:
    (root / "toy/server.py").write_text(SERVER.replace("assert request in", "assert request not in"))
    optional = [WAIT, edited(FINISH, required=False), edited(REAPER, required=False)]
    assert by_state(apply_patches(optional, target=root)) == {
        "toy-wait": "applied",
        "toy-finish": "does not match",
        "toy-reaper": "does not match",
    }
    assert (root / "toy/loop.py").read_text() == LOOP


@pytest.mark.parametrize(
    ("version", "state"), [("2.0", "not needed"), ("2.1+rocm7", "not needed"), ("0.9", "does not match")]
)
def test_the_installed_version_says_whether_a_patch_is_needed(tmp_path: Path, version: str, state: str) -> None:
    root = install(tmp_path / "site", version)
    found = check_patches([WAIT], target=root)[0]
    assert found.state == state
    assert "2.0" in found.detail


def test_any_of_the_named_distributions_will_do(tmp_path: Path) -> None:
    root = install(tmp_path / "site", "1.9+cpu", name="toy-cpu")
    found = apply_patches([WAIT], target=root)[0]
    assert (found.state, found.package, found.version) == ("applied", "toy-cpu", "1.9+cpu")


def test_a_reinstalled_package_is_patched_anew(root: Path) -> None:
    apply_patches([WAIT], target=root)
    (root / "toy/server.py").write_text(SERVER)
    assert by_state(apply_patches([WAIT], target=root)) == {"toy-wait": "applied"}
    revert_patches([root])
    assert (root / "toy/server.py").read_text() == SERVER


def test_an_upgraded_package_is_patched_as_the_new_version(root: Path) -> None:
    apply_patches([WAIT], target=root)
    (root / "toy-1.2.dist-info").rename(root / "toy-1.3.dist-info")
    metadata = root / "toy-1.3.dist-info/METADATA"
    metadata.write_text(metadata.read_text().replace("1.2", "1.3"))
    newer = SERVER + "NEW = True\n"
    (root / "toy/server.py").write_text(newer)
    assert by_state(apply_patches([WAIT], target=root)) == {"toy-wait": "applied"}
    assert "NEW = True" in (root / "toy/server.py").read_text()
    revert_patches([root])
    assert (root / "toy/server.py").read_text() == newer


def test_patches_of_an_earlier_call_stay_and_are_told(root: Path) -> None:
    apply_patches([WAIT], target=root, waiver="w-1")
    first = apply_patches([FINISH], target=root)
    assert by_state(first) == {"toy-finish": "applied", "toy-wait": "already applied"}
    assert (first[1].detail, first[1].waiver) == ("by an earlier call, nobody asked for it now", "w-1")
    assert by_state(apply_patches([FINISH], target=root)) == {
        "toy-finish": "already applied",
        "toy-wait": "already applied",
    }


def test_a_patch_that_somebody_else_has_put_in_is_recognised_and_left_alone(root: Path) -> None:
    apply_patches([WAIT], target=root)
    for path in (root / MANIFEST, root / f"toy/server.py{BACKUP_SUFFIX}"):
        path.unlink()
    before = digests(root)
    found = apply_patches([WAIT], target=root)[0]
    assert (found.state, found.detail) == ("already applied", "it stands there, its ledger and backup are missing")
    assert digests(root) == before


def test_a_newer_form_of_a_patch_takes_the_place_of_the_older(root: Path) -> None:
    apply_patches([WAIT], target=root)
    edit = attrs.evolve(WAIT.edits[0], replacement=WAIT.edits[0].replacement.replace("30", "60"))
    newer = edited(WAIT, edits=[edit])
    assert by_state(apply_patches([newer], target=root)) == {"toy-wait": "applied"}
    assert "+ 60" in (root / "toy/server.py").read_text()
    revert_patches([root])
    assert (root / "toy/server.py").read_text() == SERVER


def test_an_interpreter_is_asked_where_it_imports_from_and_imports_nothing(root: Path, tmp_path: Path) -> None:
    (root / "toy/__init__.py").write_text("raise SystemExit('imported')\n")
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={root} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    assert find_site([WAIT], python=str(python)).versions == {"toy": "1.2"}
    assert apply_patches([WAIT], python=str(python))[0].files[0].path == str(root / "toy/server.py")


def test_a_plan_for_another_version_stops_where_the_wish_would_be_lost(tmp_path: Path) -> None:
    from disagg_run.patching import select_patches

    older, newer = install(tmp_path / "older", "1.2"), install(tmp_path / "newer", "2.0")
    for_older = select_patches([WAIT], ["bounds"], "1.2").patches
    for_newer = select_patches([WAIT], ["bounds"], "2.0").patches
    assert by_state(apply_patches(for_older, target=older)) == {"toy-wait": "applied"}
    assert by_state(apply_patches(for_newer, target=newer)) == {"toy-wait": "not needed"}
    with pytest.raises(PatchesRefused, match=r"the plan was made for 1\.2, toy 2\.0 has the setting --wait-timeout"):
        apply_patches(for_older, target=newer)
    revert_patches([older])
    with pytest.raises(PatchesRefused, match=r"the plan was made for 2\.0, which has the setting --wait-timeout"):
        apply_patches(for_newer, target=older)


def test_recorded_digests_tell_a_changed_file_and_a_wrong_result(root: Path, tmp_path: Path) -> None:
    file = apply_patches([WAIT], target=root)[0].files[0]
    revert_patches([root])
    known = FileDigest(version="1.2", file="toy/server.py", before=file.before, after=file.after)
    assert apply_patches([edited(WAIT, digests=[known])], target=root)[0].files[0].as_released is True
    other = install(tmp_path / "other", server=SERVER + "# built differently\n")
    assert apply_patches([edited(WAIT, digests=[known])], target=other)[0].files[0].as_released is False
    wrong = edited(WAIT, digests=[attrs.evolve(known, after="0" * 64)])
    revert_patches([root])
    with pytest.raises(PatchError, match="another text than is recorded"):
        apply_patches([wrong], target=root)


def test_a_preview_shows_the_unpatched_text_against_the_patched_whatever_is_applied(root: Path) -> None:
    first = preview(in_order([WAIT]), find_site([WAIT], target=root))
    apply_patches(ALL, target=root)
    assert preview(in_order([WAIT]), find_site([WAIT], target=root)) == first
    assert [text.file for text in first.texts] == ["toy/server.py"]
    assert first.texts[0].before == SERVER


def test_files_that_a_distribution_may_not_have_are_left_out_where_they_are_absent(root: Path) -> None:
    edit = FINISH.edits[0]
    patch = edited(
        FINISH,
        file="",
        edits=[attrs.evolve(edit, file=name, optional=True) for name in ("toy/server.py", "toy/absent.py", "tox/a.py")],
    )
    assert [each.file for each in apply_patches([patch], target=root)[0].files] == ["toy/server.py"]
    revert_patches([root])
    none = edited(patch, edits=[attrs.evolve(edit, file="toy/absent.py", optional=True)])
    with pytest.raises(PatchesRefused, match="none of its files is there"):
        apply_patches([none], target=root)


def test_patches_are_records_that_a_manifest_brings_back(root: Path) -> None:
    apply_patches(ALL, target=root)
    from disagg_run.patching.manifest import read_manifest

    kept = {each.patch.id: each.patch for each in read_manifest(root).applied}
    for patch in ALL:
        assert isinstance(kept[patch.id], Patch)
        assert kept[patch.id].edits == patch.edits


def test_start_up_code_that_prints_does_not_keep_a_change_from_being_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hook = tmp_path / "hook"
    hook.mkdir()
    (hook / "sitecustomize.py").write_text("print('loaded')\n")
    monkeypatch.setenv("PYTHONPATH", str(hook))
    root = install(tmp_path / "site")
    before = sources(root)
    apply_patches(ALL, target=root)
    assert sources(root) != before
    revert_patches([root])
    assert sources(root) == before


def test_without_a_second_process_a_change_is_made_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("disagg_run.patching.carrying.COMMAND", ("/no/such/python",))
    root = install(tmp_path / "site")
    before = sources(root)
    apply_patches(ALL, target=root)
    assert sources(root) != before
