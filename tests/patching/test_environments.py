"""Which installation is patched, and which version it counts as: the server's own environment, pre-releases, locks."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from disagg_run.errors import PatchError
from disagg_run.patching import apply_patches, find_site, revert_patches
from disagg_run.patching.fitting import contains
from disagg_run.patching.manifest import LOCK, MANIFEST
from tests.patching.test_planned import launch_of, planned
from tests.patching.toy import SERVER, WAIT, install
from tests.running.launched import Launched

#: The user of nobody, who owns no other file.
NOBODY = 65534

NUMBERS = st.integers(min_value=0, max_value=30)
ENDS = st.sampled_from(["", "rc1", "a2", "b1.dev3", ".dev4", ".post1", ".post1.dev2", "+cpu", "rc1.dev99+gabc"])


@given(NUMBERS, NUMBERS, ENDS)
def test_exactly_one_of_below_and_from_a_release_holds_each_version(bound: int, found: int, end: str) -> None:
    version = f"0.{found}.0{end}"
    assert contains(f"<0.{bound}", version) is not contains(f">=0.{bound}", version)


@pytest.mark.parametrize(
    ("version", "since"), [("0.18.0rc1.dev99+gabc", "0.18"), ("0.22.0rc1", "0.22"), ("0.17.0rc2", "0.17")]
)
def test_a_pre_release_has_the_edits_of_its_release(version: str, since: str) -> None:
    assert contains(f">={since}", version)
    assert not contains(f"<{since}", version)


def test_a_bound_that_is_a_pre_release_tells_pre_releases_apart() -> None:
    assert contains("<0.18.0rc2", "0.18.0rc1")
    assert not contains("<0.18.0rc2", "0.18.0rc3")


def test_the_installation_is_found_in_the_environment_that_the_server_has(tmp_path: Path) -> None:
    here, there = install(tmp_path / "here"), install(tmp_path / "there")
    for root in (here, there):
        found = find_site([WAIT], python=sys.executable, env={**os.environ, "PYTHONPATH": str(root)})
        assert set(found.roots.values()) == {root}


def test_a_run_patches_what_its_servers_own_python_path_gives(tmp_path: Path) -> None:
    other, own = install(tmp_path / "site"), install(tmp_path / "own")
    launch, mark = launch_of(tmp_path, other, planned("toy-wait").ranks[0].groups[0].patches)
    # The wrapper of that plan names `other`; behind it stands what the process is given.
    wrapper = tmp_path / "bin" / "python3"
    wrapper.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
    server = launch.process("prefill-0")
    group = attrs.evolve(
        launch.ranks[0].groups[0], processes=[attrs.evolve(server, env={**server.env, "PYTHONPATH": str(own)})]
    )
    launch = attrs.evolve(launch, ranks=[attrs.evolve(launch.ranks[0], groups=[group])])
    launched = Launched(launch, tmp_path / "launch")
    launched.process.wait(30)
    assert mark.read_text() == str(own / "toy/server.py")
    assert (own / MANIFEST).exists()
    assert not (other / MANIFEST).exists()
    assert (other / "toy/server.py").read_text() == SERVER


@pytest.mark.parametrize(("code", "line"), [("import atexit; atexit.register(print, 'bye')", "ok"), ("", "[]")])
def test_what_an_interpreter_prints_besides_is_not_its_answer(tmp_path: Path, code: str, line: str) -> None:
    root = install(tmp_path / "site")
    if code:
        (root / "sitecustomize.py").write_text(code)
        found = find_site([WAIT], python=sys.executable, env={**os.environ, "PYTHONPATH": str(root)})
        assert set(found.roots.values()) == {root}
        return
    python = tmp_path / "python3"
    python.write_text(f"#!/bin/sh\necho 'disagg-run-answer {line}'\n")
    python.chmod(0o755)
    with pytest.raises(PatchError, match="cannot say where its packages lie"):
        find_site([WAIT], python=str(python))


def test_a_lock_that_is_a_symbolic_link_is_not_written_through(tmp_path: Path) -> None:
    root = install(tmp_path / "site")
    precious = tmp_path / "precious.txt"
    precious.write_text("mine")
    (root / LOCK).symlink_to(precious)
    with pytest.raises(PatchError, match=r"the lock file .* is a symbolic link: remove it"):
        apply_patches([WAIT], target=root)
    assert precious.read_text() == "mine"
    assert (root / "toy/server.py").read_text() == SERVER


def _without_file(data: dict[str, Any]) -> None:
    data["files"].pop("toy/server.py")
    data["files"]["toy/other.py"] = {"original": "0" * 64, "current": "0" * 64, "mtime_ns": 1}


def _with_nothing_pending(data: dict[str, Any]) -> None:
    data["pending"] = {}


def _with_a_time_of_no_file(data: dict[str, Any]) -> None:
    data["files"]["toy/server.py"]["mtime_ns"] = 10**30


def _with_a_name_of_no_file(data: dict[str, Any]) -> None:
    data["files"]["toy/\0.py"] = data["files"]["toy/server.py"]


def _with_half_a_pair(data: dict[str, Any]) -> None:
    data["applied"][0]["patch"]["why"] = "\ud800"


def test_a_file_of_before_1970_is_patched_and_comes_back(tmp_path: Path) -> None:
    root = install(tmp_path / "site")
    os.utime(root / "toy/server.py", ns=(-(10**18), -(10**18)))
    apply_patches([WAIT], target=root)
    revert_patches([root])
    assert (root / "toy/server.py").read_text() == SERVER
    assert (root / "toy/server.py").stat().st_mtime_ns == -(10**18)


@pytest.mark.parametrize(
    "damage",
    [_with_half_a_pair, _without_file, _with_nothing_pending, _with_a_time_of_no_file, _with_a_name_of_no_file],
)
def test_a_ledger_that_is_wrong_inside_keeps_the_patched_tree(tmp_path: Path, damage: Any) -> None:
    root = install(tmp_path / "site")
    apply_patches([WAIT], target=root)
    patched = (root / "toy/server.py").read_bytes()
    data = json.loads((root / MANIFEST).read_text())
    damage(data)
    (root / MANIFEST).write_text(json.dumps(data))
    for change in (lambda: apply_patches([WAIT], target=root), lambda: revert_patches([root])):
        with pytest.raises(PatchError, match=r"is damaged: .*: reinstall the package"):
            change()
    assert (root / MANIFEST).exists()
    assert (root / "toy/server.py").read_bytes() == patched


@pytest.mark.real
def test_an_owner_reverts_what_root_has_patched() -> None:
    """As root, as in CI: only root can give files away."""
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        root = install(Path(directory) / "site")
        for path in (root, *root.rglob("*")):
            os.chown(path, NOBODY, NOBODY)
        apply_patches([WAIT], target=root)
        # Nobody may not enter the directory of every interpreter: it becomes nobody once it has what it needs.
        code = (
            "import os, pathlib, sys; from disagg_run.patching import revert_patches; os.setgroups([]);"
            f" os.setgid({NOBODY}); os.setuid({NOBODY}); revert_patches([pathlib.Path(sys.argv[1])])"
        )
        done = subprocess.run([sys.executable, "-c", code, str(root)], capture_output=True, text=True, cwd="/")
        assert (done.returncode, done.stderr) == (0, "")
        assert (root / "toy/server.py").read_text() == SERVER
        assert not (root / MANIFEST).exists()
