"""Installations that are not as their release: each refusal gives the true reason, its place and the remedy."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from disagg_run.errors import PatchError
from disagg_run.patching import (
    PatchesRefused,
    apply_patches,
    check_patches,
    find_site,
    ledgers,
    preview,
    revert_patches,
    take_stock,
)
from disagg_run.patching.manifest import MANIFEST
from disagg_run.records import Edit
from disagg_run.testing.distributions import installed_plugin
from tests.patching.test_command import Ran
from tests.patching.test_planned import ToyPatches
from tests.patching.toy import ALL, FINISH, LOOP, REAPER, SERVER, WAIT, by_state, digests, edited, install

COMMANDS = (
    ["status"],
    ["check", "toy-wait"],
    ["apply", "toy-wait"],
    ["revert"],
    ["revert", "toy-wait"],
    ["show", "toy-wait"],
)


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    """An installation, while a plugin offers patches for it."""
    with installed_plugin(tmp_path, "toy-patches", ToyPatches()):
        yield install(tmp_path / "site")


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """An installation of which no plugin knows."""
    return install(tmp_path / "site")


FILES = {
    "mark": (b"\xef\xbb\xbf" + SERVER.encode(), "it begins with a byte order mark"),
    "latin-1": (
        b"# -*- coding: latin-1 -*-\n# \xe9\n" + SERVER.encode(),
        "it is not UTF-8, with byte 0xe9 in line 2",
    ),
    "returns": (SERVER.replace("\n", "\r\n").encode(), "its lines end in CR LF, those of the patch in LF"),
    "empty": (b"", "it is empty"),
}


@pytest.mark.parametrize("patch", [WAIT, FINISH], ids=["by statements", "by text"])
@pytest.mark.parametrize("case", FILES)
def test_a_file_that_is_not_as_released_is_named_with_what_is_wrong(bare: Path, case: str, patch: Any) -> None:
    data, reason = FILES[case]
    (bare / "toy/server.py").write_bytes(data)
    before = digests(bare)
    with pytest.raises(PatchesRefused) as refusal:
        apply_patches([patch], target=bare)
    assert str(refusal.value).startswith(f"patch {patch.id!r} does not match toy 1.2: toy/server.py: {reason}")
    assert str(refusal.value).endswith(": nothing was changed; reinstall toy==1.2")
    assert digests(bare) == before


@pytest.mark.parametrize("case", FILES)
def test_a_file_that_an_optional_patch_cannot_be_made_in_is_left_as_it_is(bare: Path, case: str) -> None:
    (bare / "toy/server.py").write_bytes(FILES[case][0])
    loop = edited(REAPER, id="toy-loop", requires=[], edits=REAPER.edits[1:])
    states = by_state(apply_patches([edited(WAIT, required=False), loop], target=bare))
    assert states == {"toy-loop": "applied", "toy-wait": "does not match"}
    assert (bare / "toy/server.py").read_bytes() == FILES[case][0]
    revert_patches([bare])
    assert (bare / "toy/loop.py").read_text() == LOOP


def test_a_file_that_is_no_python_as_it_stands_is_not_the_fault_of_the_patch(bare: Path) -> None:
    (bare / "toy/server.py").write_text(SERVER + "def broken(:\n")
    (state,) = check_patches([FINISH], target=bare)
    assert state.state == "does not match"
    assert state.detail.startswith("toy/server.py: it is no Python as it stands: Python 3.")


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_directory_in_a_files_place_is_one_clear_line(
    capsys: pytest.CaptureFixture[str], root: Path, words: list[str]
) -> None:
    (root / "toy/server.py").unlink()
    (root / "toy/server.py").mkdir()
    ran = Ran(capsys, *words, "--target", root)
    if words in (["status"], ["revert"]):
        assert (ran.code, ran.out, ran.err) == (0, "no patch is applied\n", "")
    else:
        assert (ran.code, ran.out, len(ran.err.splitlines())) == (6, "", 1)


# --- ledgers whose innards are damaged ------------------------------------------------------------------------------


def _patch(data: Any) -> Any:
    return data["applied"][0]["patch"]


def _file(data: Any) -> Any:
    return data["files"]["toy/server.py"]


DAMAGES: dict[str, Callable[[Any], object]] = {
    "files is missing": lambda data: data.pop("files"),
    "applied is missing": lambda data: data.pop("applied"),
    "schema is missing": lambda data: data.pop("schema"),
    "files is no object": lambda data: data.update(files=[]),
    "files['toy/server.py'] is no object": lambda data: data.update(files={"toy/server.py": 3}),
    "files['toy/server.py'].original is 3, not text": lambda data: _file(data).update(original=3),
    "files['toy/server.py'].mtime_ns is 'x', not a whole number": lambda data: _file(data).update(mtime_ns="x"),
    "files['toy/server.py'].current is missing": lambda data: _file(data).pop("current"),
    "files['toy/server.py'] has a digest that is none": lambda data: _file(data).update(current="abc"),
    "files has '../x', which is no file of the import root": lambda data: data["files"].update({"../x": _file(data)}),
    "applied is no list": lambda data: data.update(applied="x"),
    "applied[0] is no object": lambda data: data.update(applied=[None]),
    "applied has a patch twice": lambda data: data.update(applied=data["applied"] * 2),
    "applied[0].version is 3, not text": lambda data: data["applied"][0].update(version=3),
    "applied[0].patch.id is None, not text": lambda data: _patch(data).update(id=None),
    "applied[0].patch.required is 1, not true or false": lambda data: _patch(data).update(required=1),
    "applied[0].patch.requires is no list": lambda data: _patch(data).update(requires="abc"),
    "applied[0].patch.colour is an unknown key": lambda data: _patch(data).update(colour="red"),
    "applied[0].patch.edits[0].anchor is 3, not text": lambda data: _patch(data)["edits"][0].update(anchor=3),
    "applied[0].patch.edits[0].by is 'x', not 'text' or 'statements'": lambda data: _patch(data)["edits"][0].update(
        by="x"
    ),
    "it lists patches without files": lambda data: data.update(files={}),
    "it lists files without patches": lambda data: data.update(applied=[]),
    "pending is no object": lambda data: data.update(pending="x"),
    "pending.applied[0] is no object": lambda data: data.update(pending={"applied": [3]}),
}


def complaints(root: Path) -> list[str]:
    """What every way to look at an installation or to change it says of its ledger."""
    site = find_site([WAIT], target=root)
    ways: list[Callable[[], object]] = [
        lambda: take_stock([WAIT], site, [root]),
        lambda: ledgers([root]),
        lambda: check_patches([WAIT], target=root),
        lambda: apply_patches([WAIT], target=root),
        lambda: revert_patches([root]),
        lambda: revert_patches([root], ["toy-wait"]),
        lambda: preview([WAIT], site),
    ]
    said = []
    for way in ways:
        with pytest.raises(PatchError) as refusal:
            way()
        said.append(str(refusal.value))
    return said


@pytest.mark.parametrize("reason", DAMAGES)
def test_a_ledger_with_damaged_innards_says_where(bare: Path, reason: str) -> None:
    apply_patches([WAIT], target=bare)
    path = bare / MANIFEST
    data = json.loads(path.read_text())
    DAMAGES[reason](data)
    path.write_text(json.dumps(data))
    before = digests(bare)
    assert set(complaints(bare)) == {f"{path} is damaged: {reason}: reinstall the package, then remove the file"}
    assert digests(bare) == before


@pytest.mark.parametrize(
    "text", ["", "[]", "null", "3", "{}", "[" * 100_000, '{"schema": 1', "\xe9", "\0"], ids=range(9)
)
def test_a_ledger_that_is_none_is_one_clear_line(bare: Path, text: str) -> None:
    apply_patches([WAIT], target=bare)
    (bare / MANIFEST).write_text(text, encoding="latin-1")
    for said in complaints(bare):
        assert said.startswith((f"{bare / MANIFEST} is damaged: ", f"cannot read {bare / MANIFEST}: "))
        assert said.endswith(": reinstall the package, then remove the file")
        assert len(said.splitlines()) == 1


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_damaged_ledger_ends_every_command_with_6(
    capsys: pytest.CaptureFixture[str], root: Path, words: list[str]
) -> None:
    apply_patches([WAIT], target=root)
    (root / MANIFEST).write_text('{"schema": 1, "files": {}, "applied": [{}], "pending": null}')
    ran = Ran(capsys, *words, "--target", root)
    assert (ran.code, ran.out) == (6, "")
    assert ran.err == (
        f"disagg-run: error: {root / MANIFEST} is damaged: applied[0].patch is missing: "
        "reinstall the package, then remove the file\n"
    )


# --- metadata -------------------------------------------------------------------------------------------------------


def interpreter(tmp_path: Path, root: Path) -> str:
    """A Python that imports the toy package."""
    path = tmp_path / "python9"
    path.write_text(f'#!/bin/sh\nPYTHONPATH={shlex.quote(str(root))} exec {shlex.quote(sys.executable)} "$@"\n')
    path.chmod(0o755)
    return str(path)


METADATA = {
    "foo": ("Metadata-Version: 2.1\nName: toy\nVersion: foo\n", "name the version 'foo', which is none"),
    "none": ("Metadata-Version: 2.1\nName: toy\n", "name no version"),
    "blank": ("Metadata-Version: 2.1\nName: toy\nVersion:\n", "name no version"),
    "empty": ("", "name no version"),
    "absent": (None, "name no version"),
}


@pytest.mark.parametrize("way", ["target", "python"])
@pytest.mark.parametrize("case", METADATA)
def test_metadata_without_a_version_are_named_as_the_reason(tmp_path: Path, bare: Path, case: str, way: str) -> None:
    text, reason = METADATA[case]
    (bare / "toy-1.2.dist-info/METADATA").unlink()
    if text is not None:
        (bare / "toy-1.2.dist-info/METADATA").write_text(text)
    before = digests(bare)
    site: dict[str, Any] = {"target": bare} if way == "target" else {"python": interpreter(tmp_path, bare)}
    with pytest.raises(PatchesRefused) as refusal:
        apply_patches(ALL, **site)
    assert f"the metadata of toy in {bare} {reason}: nothing was changed; reinstall toy" in str(refusal.value) or (
        f"the metadata of toy in {bare} {reason}, nor do 2 others: nothing was changed; reinstall toy"
        in str(refusal.value)
    )
    assert digests(bare) == before
    # An optional patch is left out for the same reason.
    (state,) = check_patches([edited(WAIT, required=False)], **site)
    assert (state.state, state.detail) == ("does not match", f"the metadata of toy in {bare} {reason}")


# --- two distributions with the same files --------------------------------------------------------------------------


def add(root: Path, name: str, version: str, files: list[str] | None = None) -> None:
    """Metadata of one more distribution, with its list of files."""
    info = root / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    if files is not None:
        (info / "RECORD").write_text("".join(f"{file},,\n" for file in files))


OURS = ["toy/__init__.py", "toy/server.py", "toy/loop.py"]


@pytest.mark.parametrize("way", ["target", "python"])
@pytest.mark.parametrize("listed", [True, False])
def test_two_distributions_of_two_versions_with_the_same_files_are_refused(
    tmp_path: Path, bare: Path, listed: bool, way: str
) -> None:
    for name, version in (("toy", "1.2"), ("toy-cpu", "1.5")):
        add(bare, name, version, OURS if listed else None)
    site: dict[str, Any] = {"target": bare} if way == "target" else {"python": interpreter(tmp_path, bare)}
    with pytest.raises(PatchesRefused) as refusal:
        apply_patches([WAIT], **site)
    assert str(refusal.value) == (
        f"patch 'toy-wait' does not match toy 1.2: toy 1.2 and toy-cpu 1.5 are both installed in {bare}: "
        "nothing was changed; uninstall them, then install one"
    )


def test_two_distributions_of_one_version_are_taken_as_one_and_it_is_said_which(bare: Path) -> None:
    for name in ("toy", "toy-cpu"):
        add(bare, name, "1.2", OURS)
    (state,) = apply_patches([WAIT], target=bare)
    assert (state.state, state.package, state.version) == ("applied", "toy", "1.2")
    assert state.detail == "taken for toy 1.2, toy-cpu 1.2 is installed there too"


def test_a_distribution_that_brings_none_of_the_files_does_not_count(bare: Path) -> None:
    """As a package that only depends on the one which brings the files."""
    add(bare, "toy", "9.0", ["toy-9.0.dist-info/METADATA"])
    (bare / "toy-1.2.dist-info/METADATA").unlink()
    (bare / "toy-1.2.dist-info").rmdir()
    add(bare, "toy-cpu", "1.5", OURS)
    (state,) = apply_patches([WAIT], target=bare)
    assert (state.state, state.package, state.version, state.detail) == ("applied", "toy-cpu", "1.5", "")


def test_a_distribution_that_is_there_in_two_versions_is_refused(bare: Path) -> None:
    add(bare, "toy", "1.10")
    (state,) = check_patches([FINISH], target=bare)
    assert (state.state, state.detail) == ("does not match", f"toy 1.10 and toy 1.2 are both installed in {bare}")


def test_what_another_directory_has_of_the_same_name_does_not_count(tmp_path: Path, bare: Path) -> None:
    (tmp_path / "first").mkdir()
    add(tmp_path / "first", "toy", "1.9")
    python = tmp_path / "python9"
    places = os.pathsep.join([str(tmp_path / "first"), str(bare)])
    python.write_text(f'#!/bin/sh\nPYTHONPATH={shlex.quote(places)} exec {shlex.quote(sys.executable)} "$@"\n')
    python.chmod(0o755)
    (state,) = apply_patches([WAIT], python=str(python))
    assert (state.state, state.version) == ("applied", "1.2")


def test_a_patch_over_two_installations_is_refused_naming_both(tmp_path: Path, bare: Path) -> None:
    other = install(tmp_path / "other", name="tox")
    (other / "toy").rename(other / "tox")
    both = edited(
        FINISH, versions="", package=["toy"], edits=[*FINISH.edits, Edit(anchor="a", replacement="b", file="tox/a.py")]
    )
    python = tmp_path / "python9"
    places = os.pathsep.join([str(bare), str(other)])
    python.write_text(f'#!/bin/sh\nPYTHONPATH={shlex.quote(places)} exec {shlex.quote(sys.executable)} "$@"\n')
    python.chmod(0o755)
    with pytest.raises(PatchError) as refusal:
        check_patches([both], python=str(python))
    assert f"has files under {bare} and {other}, which are two installations" in str(refusal.value)
