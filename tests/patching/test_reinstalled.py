"""A package that was upgraded, installed anew or removed since it was patched carries no patches any more."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest

from disagg_run.patching import apply_patches, check_patches, engine_ledgers, revert_patches
from disagg_run.patching.manifest import BACKUP_SUFFIX, MANIFEST
from disagg_run.records import FileDigest
from disagg_run.running.carried_patches import check_carried
from disagg_run.testing.distributions import installed_plugin
from tests.patching.test_command import Ran
from tests.patching.test_planned import ToyPatches, planned
from tests.patching.test_true_reasons import interpreter
from tests.patching.toy import ALL, FINISH, LOOP, SERVER, WAIT, by_state, digests, install, sources

NEWER = SERVER + "NEW = True\n"

#: Version and name of the distribution that takes the place of toy 1.2, and its server.
AFTER = {
    "upgraded beyond the patches": ("2.1", "toy", NEWER),
    "upgraded": ("1.3", "toy", NEWER),
    "another of its names": ("1.3", "toy-cpu", NEWER),
    "the same again": ("1.2", "toy", SERVER),
    "removed": ("", "", ""),
}


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    """An installation, while a plugin offers patches for it."""
    with installed_plugin(tmp_path, "toy-patches", ToyPatches()):
        yield install(tmp_path / "site")


def replace(root: Path, version: str, name: str, server: str) -> None:
    """What an installer does: the files that it listed go, and others come. What it never listed stays."""
    for path in root.glob("toy*.dist-info"):
        shutil.rmtree(path)
    for file in ("__init__.py", "server.py", "loop.py"):
        (root / "toy" / file).unlink()
    if version:
        new = install(root / "unpacked", version, name=name, server=server)
        for path in [*new.glob("toy/*.py"), *new.glob("*.dist-info")]:
            path.rename(root / path.relative_to(new))
        shutil.rmtree(new)


@pytest.mark.parametrize("case", AFTER)
def test_a_ledger_of_files_that_are_no_more_is_told_and_forgotten(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, root: Path, case: str
) -> None:
    applied = WAIT if case == "another of its names" else ALL  # toy-cpu is a name that one of them knows
    apply_patches([applied] if applied is WAIT else ALL, target=root)
    replace(root, *AFTER[case])
    clean = sources(root)
    status = Ran(capsys, "status", "--target", root)
    assert (status.code, status.err) == (0, "")
    assert "'toy-wait'" in status.out
    assert "went when toy 1.2 was installed anew or replaced: revert forgets the record" in status.out
    (found,) = json.loads(Ran(capsys, "status", "--format", "json", "--target", root).out)
    assert (found["patches"], found["problem"]) == ([], "")
    assert "nothing is left to undo" in found["stale"]
    assert Ran(capsys, "status", "--expect", "none", "--target", root).code == 0
    python = interpreter(tmp_path, root)
    assert engine_ledgers(python) == ()
    warnings: list[str] = []
    group = attrs.evolve(planned("toy-wait").ranks[0].groups[0], patches=(), forbid_patches=True)
    check_carried(group, python, warnings.append)
    assert warnings == []
    reverted = Ran(capsys, "revert", "--target", root)
    assert (reverted.code, reverted.err) == (0, "")
    assert "nothing is left to revert" in reverted.out
    assert sources(root) == clean
    assert not [name for name in digests(root) if "disagg-run" in name]
    assert Ran(capsys, "status", "--target", root).out == "no patch is applied\n"


def test_a_package_of_another_name_is_patched_over_the_ledger_of_the_former(root: Path) -> None:
    apply_patches([WAIT], target=root)
    replace(root, *AFTER["another of its names"])
    (state,) = apply_patches([WAIT], target=root)
    assert (state.state, state.package, state.version) == ("applied", "toy-cpu", "1.3")
    revert_patches([root])
    assert (root / "toy/server.py").read_text() == NEWER


def test_a_release_beside_a_file_that_had_been_altered_before_it_was_patched_is_clean(root: Path) -> None:
    """The ledger's original is not what the release has, whose digest the patch knows."""
    released = FileDigest(file="toy/server.py", version="1.2", before=digests(root)["toy/server.py"], after="0" * 64)
    (root / "toy/server.py").write_text(NEWER)
    apply_patches([attrs.evolve(FINISH, digests=[released])], target=root)
    replace(root, "1.2", "toy", SERVER)
    (state,) = revert_patches([root])
    assert state.detail == "its files were installed anew since, nothing is left to revert"


@pytest.mark.parametrize("version", ["1.2", "1.3"])
def test_a_file_that_was_changed_by_hand_stays_refused(
    capsys: pytest.CaptureFixture[str], root: Path, version: str
) -> None:
    apply_patches(ALL, target=root)
    if version != "1.2":  # with another version one of the files is still ours, so it was not the installer
        (root / "toy-1.2.dist-info").rename(root / f"toy-{version}.dist-info")
        metadata = root / f"toy-{version}.dist-info/METADATA"
        metadata.write_text(metadata.read_text().replace("1.2", version))
    else:
        (root / "toy/loop.py").write_text(LOOP + "# mine\n")
    with (root / "toy/server.py").open("a") as file:
        file.write("# mine\n")
    before = digests(root)
    status = Ran(capsys, "status", "--expect", "none", "--target", root)
    assert (status.code, "is not what disagg-run left" in status.err) == (6, True)
    for words in (["check", "toy-wait"], ["apply", "toy-wait"], ["revert"]):
        ran = Ran(capsys, *words, "--target", root)
        assert (ran.code, "was changed after disagg-run patched it" in ran.err) == (6, True)
    assert digests(root) == before


def test_patches_that_stand_in_the_new_files_are_seen_for_themselves(
    capsys: pytest.CaptureFixture[str], root: Path
) -> None:
    apply_patches([FINISH], target=root)
    patched = (root / "toy/server.py").read_text()
    replace(root, "1.3", "toy", patched + "NEW = True\n")
    assert by_state(check_patches([FINISH], target=root)) == {"toy-finish": "already applied"}
    status = Ran(capsys, "status", "--target", root)
    assert status.code == 6
    assert "patched with 'toy-finish', but its ledger and backup are missing: reinstall toy==1.3" in status.err


def test_show_makes_its_diff_of_the_new_files(capsys: pytest.CaptureFixture[str], root: Path) -> None:
    apply_patches([WAIT], target=root)
    replace(root, "1.3", "toy", "# A new first line.\n" + SERVER)
    assert (root / f"toy/server.py{BACKUP_SUFFIX}").exists()
    assert (root / MANIFEST).exists()
    assert "@@ -6," in Ran(capsys, "show", "toy-wait", "--target", root).out
