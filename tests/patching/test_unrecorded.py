"""Patches whose ledger or backup is gone: status, check, apply and revert say the same of them, with the remedy."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import attrs
import pytest

from disagg_run.errors import PatchError
from disagg_run.patching import apply_patches, check_patches, find_site, ledgers, preview, revert_patches, take_stock
from disagg_run.patching.manifest import BACKUP_SUFFIX, MANIFEST
from disagg_run.patching.ordering import in_order
from disagg_run.records import Edit, Patch
from disagg_run.testing.distributions import installed_plugin
from tests.patching.test_command import Ran
from tests.patching.test_planned import ToyPatches
from tests.patching.toy import ALL, FINISH, REAPER, SERVER, WAIT, by_state, digests, edited, install

NAMES = ("toy-finish", "toy-reaper", "toy-wait")


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    """An installation, while a plugin offers patches for it."""
    with installed_plugin(tmp_path, "toy-patches", ToyPatches()):
        yield install(tmp_path / "site")


def forget(root: Path, *, backups: bool) -> None:
    """Remove the ledger, and the backups too."""
    (root / MANIFEST).unlink()
    for path in root.rglob(f"*{BACKUP_SUFFIX}") if backups else ():
        path.unlink()


def problems(root: Path, patches: Sequence[Patch] = ALL) -> list[str]:
    return [each.problem for each in take_stock(patches, find_site(patches, target=root), [root])]


@pytest.mark.parametrize(
    ("backups", "lost"), [(False, "its ledger is missing"), (True, "its ledger and backup are missing")]
)
def test_a_patch_without_its_ledger_is_told_by_every_command(
    capsys: pytest.CaptureFixture[str], root: Path, backups: bool, lost: str
) -> None:
    apply_patches(ALL, target=root)
    forget(root, backups=backups)
    before = digests(root)
    status = Ran(capsys, "status", "--target", root)
    assert status.code == 6
    assert status.err == f"disagg-run: error: {root}: patched with 'toy-finish', but {lost}: reinstall toy==1.2\n"
    assert status.out.count(lost) == 3
    (ledger,) = json.loads(Ran(capsys, "status", "--target", root, "--format", "json").out)
    assert [(each["id"], each["state"], each["detail"], each["remedy"]) for each in ledger["patches"]] == [
        (name, "already applied", lost, "reinstall toy==1.2") for name in NAMES
    ]
    for words in ("check", "apply"):
        ran = Ran(capsys, words, *NAMES, "--target", root, "--format", "json")
        assert ran.code == 0
        assert [(each["id"], each["state"], each["detail"], each["remedy"]) for each in json.loads(ran.out)] == [
            (name, "already applied", f"it stands there, {lost}", "reinstall toy==1.2 to take it back")
            for name in NAMES
        ]
    for words in ("", "toy-wait"):
        ran = Ran(capsys, "revert", *words.split(), "--target", root)
        assert ran.code == 6
        assert ran.err.splitlines() == [
            f"disagg-run: error: patch '{words or 'toy-finish'}' cannot be taken back from toy 1.2: {lost}: "
            "reinstall toy==1.2"
        ]
        assert {row[1] for row in ran.rows()} == {"failed"}
    assert Ran(capsys, "status", "--expect", "none", "--target", root).code == 6
    assert digests(root) == before


def test_a_patch_on_which_another_builds_is_recognised_below_it(root: Path) -> None:
    apply_patches([FINISH, REAPER], target=root)
    forget(root, backups=True)
    assert by_state(check_patches([FINISH, REAPER], target=root)) == {
        "toy-finish": "already applied",
        "toy-reaper": "already applied",
    }
    assert preview(in_order([FINISH, REAPER]), find_site([FINISH, REAPER], target=root)).texts == ()
    # More come beside them, and go again to the byte.
    patched = digests(root)
    assert by_state(apply_patches(ALL, target=root))["toy-wait"] == "applied"
    revert_patches([root])
    assert digests(root) == patched


def test_a_patch_that_somebody_has_commented_is_recognised_and_keeps_its_bytes(root: Path) -> None:
    apply_patches(ALL, target=root)
    forget(root, backups=True)
    file = root / "toy/server.py"
    file.write_text(file.read_text().replace("time.sleep(0.001)", "time.sleep(0.001)  # mine"))
    before = digests(root)
    assert by_state(apply_patches([WAIT], target=root)) == {"toy-wait": "already applied"}
    assert digests(root) == before
    (problem,) = problems(root, [WAIT])
    assert problem.startswith("patched with 'toy-wait'")


def test_after_the_remedy_everything_is_as_before(capsys: pytest.CaptureFixture[str], root: Path) -> None:
    apply_patches([WAIT], target=root)
    forget(root, backups=False)
    (root / "toy/server.py").write_text(SERVER)
    assert Ran(capsys, "status", "--target", root).out == "no patch is applied\n"
    assert by_state(apply_patches([WAIT], target=root)) == {"toy-wait": "applied"}
    assert Ran(capsys, "revert", "--target", root).code == 0
    assert (root / "toy/server.py").read_text() == SERVER


@pytest.mark.parametrize(("backup", "lost"), [(None, "is missing"), ("another", "is not the original")])
def test_a_patch_without_its_backup_is_told_by_every_command(
    capsys: pytest.CaptureFixture[str], root: Path, backup: str | None, lost: str
) -> None:
    apply_patches([WAIT], target=root)
    path = root / f"toy/server.py{BACKUP_SUFFIX}"
    path.unlink()
    if backup is not None:
        path.write_text(backup)
    before = digests(root)
    said = f"the backup toy/server.py{BACKUP_SUFFIX} {lost}"
    status = Ran(capsys, "status", "--target", root)
    assert status.code == 6
    assert status.err == f"disagg-run: error: {root}: patched, but {said}: reinstall toy==1.2\n"
    for words in ("check", "apply"):
        ran = Ran(capsys, words, "toy-wait", "--target", root)
        assert ran.code == 0
        assert f"already applied  toy 1.2  {said}: reinstall toy==1.2 to take it back" in ran.out
    for names in ([], ["toy-wait"]):
        ran = Ran(capsys, "revert", *names, "--target", root)
        assert (ran.code, ran.out, len(ran.err.splitlines())) == (6, "", 1)
        assert str(path) in ran.err
    assert digests(root) == before
    # The remedy: then it is patched anew, and comes off.
    (root / "toy/server.py").write_text(SERVER)
    assert by_state(apply_patches([WAIT], target=root)) == {"toy-wait": "applied"}
    assert ledgers([root])[0].problem == ""
    revert_patches([root])
    assert (root / "toy/server.py").read_text() == SERVER


def test_what_has_a_ledger_comes_off_and_what_has_none_is_told(capsys: pytest.CaptureFixture[str], root: Path) -> None:
    apply_patches([FINISH], target=root)
    forget(root, backups=True)
    finished = (root / "toy/server.py").read_text()
    apply_patches([WAIT], target=root)
    named = Ran(capsys, "revert", "toy-wait", "toy-finish", "--target", root)
    assert (named.code, [row[:2] for row in named.rows()]) == (6, [["toy-finish", "failed"]])
    assert (root / "toy/server.py").read_text() != finished
    every = Ran(capsys, "revert", "--target", root)
    assert (every.code, [row[:2] for row in every.rows()]) == (6, [["toy-wait", "reverted"], ["toy-finish", "failed"]])
    assert "cannot be taken back from toy 1.2: its ledger and backup are missing" in every.err
    assert (root / "toy/server.py").read_text() == finished


def test_a_backup_without_ledger_beside_another_text_is_told(capsys: pytest.CaptureFixture[str], root: Path) -> None:
    """As an older form of a patch leaves it, which no plugin offers any more."""
    apply_patches([edited(WAIT, edits=[attrs.evolve(WAIT.edits[0], replacement="return\n")])], target=root)
    forget(root, backups=False)
    for words in ("status", "revert"):
        ran = Ran(capsys, words, "--target", root)
        assert ran.code == 6
        assert f"toy/server.py is not its backup server.py{BACKUP_SUFFIX}, and its ledger is missing" in ran.err
        assert "reinstall toy==1.2, remove the backup" in ran.err
    # What a killed call left counts for nothing: the file is as it was.
    (root / "toy/server.py").write_text(SERVER)
    assert problems(root) == []


def test_two_patches_for_one_place_do_not_hide_that_one_of_them_stands(root: Path) -> None:
    other = edited(WAIT, id="toy-other", edits=[attrs.evolve(WAIT.edits[0], replacement="return\n")])
    apply_patches([WAIT], target=root)
    forget(root, backups=True)
    (problem,) = problems(root, [WAIT, other])
    assert problem.startswith("patched with 'toy-wait', but its ledger and backup are missing")


def test_an_edit_that_only_takes_away_does_not_count_as_made_where_its_anchor_stands(root: Path) -> None:
    shorter = edited(
        FINISH,
        edits=[
            Edit(
                anchor="        assert request in self.requests\n        self.free(request)\n",
                replacement="        self.free(request)\n",
            )
        ],
    )
    assert problems(root, [shorter]) == []
    assert by_state(check_patches([shorter], target=root)) == {"toy-finish": "applicable"}
    assert by_state(apply_patches([shorter], target=root)) == {"toy-finish": "applied"}
    assert "assert request" not in (root / "toy/server.py").read_text()
    assert by_state(apply_patches([shorter], target=root)) == {"toy-finish": "already applied"}
    revert_patches([root])
    assert (root / "toy/server.py").read_text() == SERVER


def test_a_change_under_way_is_not_taken_for_a_lost_ledger(root: Path) -> None:
    from disagg_run.patching.manifest import Manifest, read_manifest

    apply_patches([WAIT], target=root)
    (root / MANIFEST).write_text(Manifest(pending=read_manifest(root)).to_json())
    (problem,) = problems(root)
    assert "was begun and not finished" in problem
    with pytest.raises(PatchError, match="was begun and not finished"):
        check_patches([WAIT], target=root)
