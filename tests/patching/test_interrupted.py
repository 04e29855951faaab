"""A change that somebody was killed over: what is said of it, and that whoever comes next leaves nothing of it."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path

import pytest

from disagg_run.cli.main import main
from disagg_run.errors import PatchError
from disagg_run.patching import PatchState, apply_patches, carrying, ledgers, patched_roots, revert_patches
from disagg_run.patching.locating import locate_site
from disagg_run.patching.locking import StillHeld, locked
from disagg_run.patching.manifest import BEGUN, LOCK, MANIFEST, NEW_SUFFIX, OLD_SUFFIX
from tests.patching.killing import die_at
from tests.patching.rough_driver import carry_alone, in_child
from tests.patching.toy import ALL, FINISH, LOOP, SERVER, WAIT, digests, install

FILE = "toy/server.py"


def unfinished(directory: Path, doing: str) -> dict[bool, Path]:
    """Installations in which a kill left a change of one file unfinished, by whether the file is renamed already."""
    found: dict[bool, Path] = {}
    for step in range(1, 200):
        root = install(directory / f"{step}")
        if doing == "revert":
            apply_patches([WAIT], target=root)
        before = (root / FILE).read_text()

        def dies(root: Path = root, step: int = step) -> None:
            die_at(step)
            change(root, doing)

        ended_by = in_child(dies)[1]
        if any(each.unfinished for each in ledgers([root])):
            found.setdefault((root / FILE).read_text() != before, root)
        if len(found) == 2:
            return found
        assert ended_by == signal.SIGKILL, "it never came to that"
    raise AssertionError("it never came to that")


def change(root: Path, doing: str) -> tuple[PatchState, ...]:
    """Apply to one file, or revert that."""
    return apply_patches([WAIT], target=root) if doing == "apply" else revert_patches([root])


@pytest.mark.parametrize("doing", ["apply", pytest.param("revert", marks=pytest.mark.real)])
def test_a_single_file_is_whole_at_every_kill_and_status_says_what_it_is(
    memory: Path, capsys: pytest.CaptureFixture[str], doing: str
) -> None:
    clean = digests(install(memory / "clean"))
    for renamed, root in unfinished(memory, doing).items():
        (ledger,) = ledgers([root])
        patched = renamed == (doing == "apply")
        assert ((root / FILE).read_text() != SERVER) == patched
        state = "patched" if patched else "unpatched"
        assert ledger.problem == f"a change was begun and not finished, {FILE} is {state}: apply or revert finishes it"
        assert [each.id for each in ledger.patches] == (["toy-wait"] if patched else [])
        assert main(["patches", "status", "--target", str(root)]) == 6
        assert ledger.problem in capsys.readouterr().err
        other = shutil.copytree(root, memory / f"other{renamed}")
        # Each of the two commands that may come next ends at its own end.
        assert {each.state for each in change(root, "apply")} <= {"applied", "already applied"}
        assert not ledgers([root])[0].problem
        assert main(["patches", "revert", "--target", str(other)]) == 0
        assert digests(other) == clean


@pytest.mark.parametrize("next_command", ["apply", "apply another", "revert"])
def test_what_a_kill_before_the_first_rename_leaves_is_removed_by_the_next_command_and_nothing_else(
    memory: Path, monkeypatch: pytest.MonkeyPatch, next_command: str
) -> None:
    monkeypatch.setattr(carrying, "carry", carry_alone)  # what comes before is what is tried
    clean = digests(install(memory / "clean"))
    seen = set()
    for step in range(1, 100, 8):
        root = install(memory / str(step))
        others = {
            root / f"toy/other.py{NEW_SUFFIX}": "somebody's own",
            root / f"toy/__init__.py{OLD_SUFFIX}": "somebody's own",
        }
        for path, text in others.items():
            path.write_text(text)

        def dies(root: Path = root, step: int = step) -> None:
            die_at(step)
            apply_patches(ALL, target=root)

        if not in_child(dies)[1] or (root / MANIFEST).exists():
            break
        seen |= {path.name for path in root.rglob("*disagg-run*") if path not in others}
        if (root / BEGUN).exists():
            assert patched_roots(locate_site((), (), target=root)) == (root,)
        if next_command.startswith("apply"):
            apply_patches(ALL if next_command == "apply" else [FINISH], target=root)
            left = [name for name in digests(root) if name.endswith((NEW_SUFFIX, OLD_SUFFIX, ".next"))]
            assert sorted(root / name for name in left) == sorted(others)
            if next_command == "apply another":
                assert not (root / "toy/loop.py.disagg-run-orig").exists()
        revert_patches([root])
        for path, text in others.items():
            assert path.read_text() == text
            path.unlink()
        (root / LOCK).unlink(missing_ok=True)  # where nothing is to be done nobody takes it, and it does no harm
        assert digests(root) == clean
    # There was something to remove, of each kind.
    assert {"server.py.disagg-run-new", "server.py.disagg-run-old", "server.py.disagg-run-orig", BEGUN} <= seen


def test_a_change_that_can_neither_go_on_nor_back_says_both_reasons(root: Path) -> None:
    apply_patches(ALL, target=root)
    manifest = json.loads((root / MANIFEST).read_text())
    pending = {key: value for key, value in manifest.items() if key != "schema"}
    (root / MANIFEST).write_text(json.dumps({"schema": 1, "files": {}, "applied": [], "pending": pending}))
    (root / FILE).write_text("somebody's own\n")
    assert "toy/server.py is neither the old nor the new one, toy/loop.py is patched" in ledgers([root])[0].problem
    before = digests(root)
    for work in (lambda: apply_patches(ALL, target=root), lambda: revert_patches([root])):
        with pytest.raises(PatchError, match="can neither be finished") as refusal:
            work()
        assert f"{root / FILE} was changed by somebody else after disagg-run had begun to" in str(refusal.value)
        assert refusal.value.remedy == f"reinstall the package, then remove {root / MANIFEST}"
        assert digests(root) == before


def test_a_file_that_somebody_changed_before_it_was_replaced_is_left_and_the_others_come_back(root: Path) -> None:
    apply_patches(ALL, target=root)
    patched = {name: (root / name).read_bytes() for name in (FILE, "toy/loop.py")}
    manifest = json.loads((root / MANIFEST).read_text())
    pending = {key: value for key, value in manifest.items() if key != "schema"}
    # As a kill after the first rename leaves it, and then somebody's edit of the file that was not renamed yet.
    (root / MANIFEST).write_text(json.dumps({"schema": 1, "files": {}, "applied": [], "pending": pending}))
    (root / f"toy/loop.py{NEW_SUFFIX}").write_bytes(patched["toy/loop.py"])
    (root / "toy/loop.py").write_text(LOOP + "# mine\n")
    assert revert_patches([root]) == ()
    assert (root / FILE).read_text() == SERVER
    assert (root / "toy/loop.py").read_text() == LOOP + "# mine\n"
    assert not [name for name in digests(root) if "disagg-run" in name]


def test_a_copy_stands_in_where_the_file_system_has_no_links(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_links(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    clean = digests(root)
    (root / FILE).chmod(0o640)
    apply_patches([WAIT], target=root)
    apply_patches(ALL, target=root)
    revert_patches([root])
    assert digests(root) == clean
    assert (root / FILE).stat().st_mode & 0o7777 == 0o640


def test_a_lock_that_a_process_of_ours_holds_on_stays(root: Path) -> None:
    with pytest.raises(StillHeld), locked(root / LOCK, 1.0):
        raise StillHeld("process 1, which changes it, can neither go on nor be ended")
    assert (root / LOCK).exists()
