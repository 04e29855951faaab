"""What is not patched, and why, in one clear line; nothing is changed then."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import attrs
import pytest

from disagg_run.errors import PatchError
from disagg_run.patching import (
    PatchesRefused,
    apply_patches,
    ledgers,
    named_patches,
    revert_patches,
)
from disagg_run.patching.manifest import MANIFEST
from disagg_run.patching.ordering import in_order
from disagg_run.records import Edit, Patch
from tests.patching.toy import ALL, FINISH, LOOP, REAPER, SERVER, WAIT, by_state, digests, edited, install


def test_a_file_that_is_a_link_is_refused(root: Path, tmp_path: Path) -> None:
    shutil.move(root / "toy/server.py", tmp_path / "real.py")
    (root / "toy/server.py").symlink_to(tmp_path / "real.py")
    with pytest.raises(PatchError, match="is a link to"):
        apply_patches([WAIT], target=root)
    assert (tmp_path / "real.py").read_text() == SERVER


def test_one_required_patch_that_does_not_match_keeps_all_from_being_written(root: Path) -> None:
    (root / "toy/loop.py").write_text(LOOP.replace("queue.get()", "queue.get_nowait()"))
    before = digests(root)
    with pytest.raises(PatchesRefused) as refusal:
        apply_patches(ALL, target=root)
    assert digests(root) == before
    message = str(refusal.value)
    for part in ("toy-reaper", "toy 1.2", "toy/loop.py", "does not stand in loop"):
        assert part in message
    assert by_state(refusal.value.states)["toy-reaper"] == "does not match"


def test_a_refusal_says_what_upstream_did(tmp_path: Path) -> None:
    root = install(tmp_path / "site", server=SERVER.replace("if peer in", "if peer not in"))
    with pytest.raises(PatchesRefused) as refusal:
        apply_patches([WAIT], target=root)
    assert "upstream: from toy 2.0 on: the wait has a bound; the setting --wait-timeout instead" in str(refusal.value)


def test_a_package_that_is_not_installed_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(
        PatchesRefused, match=r"patch 'toy-wait' does not match: no toy or toy-cpu is installed for the"
    ):
        apply_patches([WAIT], target=tmp_path)
    with pytest.raises(PatchError, match="there is no directory"):
        apply_patches([WAIT], target=tmp_path / "nowhere")


def test_a_missing_file_is_one_clear_line(root: Path) -> None:
    (root / "toy/loop.py").unlink()
    with pytest.raises(PatchesRefused, match=r"toy/loop.py: there is no such file"):
        apply_patches([FINISH, REAPER], target=root)


def test_a_patched_file_that_was_changed_since_is_refused_both_ways(root: Path) -> None:
    apply_patches([WAIT], target=root)
    changed = (root / "toy/server.py").read_text() + "# mine\n"
    (root / "toy/server.py").write_text(changed)
    with pytest.raises(PatchError, match="was changed after disagg-run patched it"):
        apply_patches(ALL, target=root)
    with pytest.raises(PatchError, match="was changed after disagg-run patched it"):
        revert_patches([root])
    assert (root / "toy/server.py").read_text() == changed
    assert "not what disagg-run left" in ledgers([root])[0].problem


def test_half_of_a_patch_by_somebody_else_is_refused(root: Path) -> None:
    apply_patches([FINISH, REAPER], target=root)
    patched = (root / "toy/loop.py").read_text()
    revert_patches([root])
    (root / "toy/loop.py").write_text(patched)
    with pytest.raises(PatchesRefused, match="some of its edits stand there already and some do not"):
        apply_patches([FINISH, REAPER], target=root)


def test_a_patch_that_builds_on_another_without_requiring_it_is_refused(root: Path) -> None:
    secret = edited(REAPER, requires=[], edits=REAPER.edits[:1])
    with pytest.raises(PatchError, match=r"'toy-reaper' and 'toy-finish' change the same place of toy/server\.py"):
        apply_patches([FINISH, secret], target=root)
    assert (root / "toy/server.py").read_text() == SERVER


def test_a_result_that_is_no_python_is_never_written(root: Path) -> None:
    broken = edited(FINISH, edits=[Edit(anchor="        self.free(request)\n", replacement="        self.free(\n")])
    with pytest.raises(PatchError, match=r"makes of toy/server\.py no Python"):
        apply_patches([broken], target=root)
    assert (root / "toy/server.py").read_text() == SERVER


@pytest.mark.parametrize("file", ["../other.py", "/etc/passwd", "toy/../../x.py", ""])
def test_a_file_outside_the_import_root_is_refused(root: Path, file: str) -> None:
    with pytest.raises(PatchError, match="names the file"):
        apply_patches([edited(FINISH, file=file)], target=root)


AS_NOBODY = """
import os, sys
from disagg_run.errors import DisaggError
from disagg_run.patching import apply_patches, check_patches
from tests.patching.toy import WAIT
check_patches([WAIT], target=sys.argv[1])  # imports what it takes, while we may read it
if os.geteuid() == 0:
    os.setuid(65534)
try:
    apply_patches([WAIT], target=sys.argv[1])
except DisaggError as error:
    sys.exit(str(error))
"""


@pytest.mark.parametrize("where", ["root", "package"])
def test_what_cannot_be_written_is_one_clear_line_and_changes_nothing(where: str) -> None:
    # Not in tmp_path, which nobody else may enter; and as another user, since root may write everywhere.
    with tempfile.TemporaryDirectory() as directory:
        root = install(Path(directory, "site"))
        Path(directory).chmod(0o755)
        root.chmod(0o555 if where == "root" else 0o777)
        (root / "toy").chmod(0o555)
        before = digests(root)
        done = subprocess.run(
            [sys.executable, "-c", AS_NOBODY, str(root)],
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
            check=False,
        )
        (root / "toy").chmod(0o755)
        root.chmod(0o755)
        assert done.returncode == 1
        assert done.stderr.startswith(f"cannot patch {root}: permission denied (")
        assert "nothing was changed" in done.stderr
        assert len(done.stderr.splitlines()) == 1
        assert digests(root) == before


def test_an_interpreter_that_is_none_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(PatchError, match="cannot run the interpreter"):
        apply_patches([WAIT], python=str(tmp_path / "python9"))
    with pytest.raises(PatchError, match="cannot say where its packages lie"):
        apply_patches([WAIT], python="false")


def test_a_required_patch_that_was_not_given_is_an_error() -> None:
    with pytest.raises(PatchError, match="'toy-reaper' requires 'toy-finish', which is not there"):
        in_order([REAPER])
    ring = [edited(FINISH, requires=["toy-reaper"]), REAPER]
    with pytest.raises(PatchError, match="in a circle"):
        in_order(ring)


def test_reverting_what_is_not_applied_names_the_nearest(root: Path) -> None:
    apply_patches([FINISH, REAPER], target=root)
    with pytest.raises(PatchError, match="did you mean 'toy-reaper'"):
        revert_patches([root], ["toy-reaper2"])
    with pytest.raises(PatchError, match="'toy-finish' cannot be reverted alone: 'toy-reaper' requires it"):
        revert_patches([root], ["toy-finish"])


def test_a_manifest_that_is_damaged_is_one_clear_line(root: Path) -> None:
    apply_patches([WAIT], target=root)
    (root / MANIFEST).write_text("{")
    with pytest.raises(PatchError, match="is damaged"):
        apply_patches([WAIT], target=root)


STATEMENTS = WAIT.edits[0]


@pytest.mark.parametrize(
    ("patch", "flaw"),
    [
        (edited(WAIT, package=[]), "it names no package"),
        (edited(WAIT, versions=">=x"), "its versions '>=x' are no version range, which is written like '>=1.2,<1.4'"),
        (edited(WAIT, fixed_in="abc"), "its fixed_in 'abc' is no version, which is written like 1.2.3"),
        (edited(WAIT, file="/toy.py"), "edit 0: it names the file '/toy.py', which is not relative"),
        (
            edited(WAIT, edits=[attrs.evolve(STATEMENTS, versions="~1")]),
            "edit 0: its versions '~1' are no version range",
        ),
        (edited(WAIT, edits=[attrs.evolve(STATEMENTS, anchor=" \n")]), "edit 0: its anchor is blank"),
        (edited(WAIT, edits=[attrs.evolve(STATEMENTS, anchor="while (")]), "edit 0: its anchor or replacement are no"),
        (
            edited(WAIT, edits=[STATEMENTS, attrs.evolve(STATEMENTS, replacement=STATEMENTS.anchor)]),
            "edit 1: it puts its anchor in the place of its anchor",
        ),
    ],
)
def test_a_patch_that_its_author_has_got_wrong_is_named_with_what_is_wrong(patch: Patch, flaw: str) -> None:
    with pytest.raises(PatchError) as refusal:
        named_patches([FINISH, patch], ["toy-wait"])
    assert str(refusal.value).startswith(f"patch 'toy-wait' is wrong: {flaw}")
    assert str(refusal.value).endswith(": report it to whoever wrote it")
    # Whoever does not ask for it never hears of it.
    assert named_patches([FINISH, patch], ["toy-finish"]) == (FINISH,)
