"""The states and exit codes that docs/patches.md lists are those that there are, each seen here."""

from __future__ import annotations

import json
import re
import resource
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import get_args

import pytest

from disagg_run import Extension, Patch, RankContext, hookimpl
from disagg_run.patching import apply_patches
from disagg_run.patching.manifest import MANIFEST
from disagg_run.patching.states import State
from disagg_run.testing.distributions import installed_plugin
from tests.patching.test_command import Ran
from tests.patching.test_planned import ToyPatches
from tests.patching.toy import SERVER, WAIT, install

PAGE = (Path(__file__).parents[2] / "docs" / "patches.md").read_text(encoding="utf-8")

#: What ends with which code: words, and what is done to the installation before. ``@`` is its directory.
CASES: dict[int, list[tuple[str, str]]] = {
    0: [
        ("list", ""),
        ("show toy-wait", ""),
        ("check toy-wait --target @", ""),
        ("apply toy-wait --target @", "applied"),
        ("check toy-wait --target @", "newer"),
        ("status --target @", "applied"),
        ("status --expect none --target @", ""),
        ("revert --target @", "applied"),
    ],
    2: [
        ("check --target @", ""),
        ("show toy-wait --version 1 --target @", ""),
        ("status --format table-of-contents", ""),
    ],
    3: [
        ("check toy-wat --target @", ""),
        ("apply --plan @/no-plan.json --target @", ""),
        ("apply --plan @/toy/server.py --target @", ""),
    ],
    4: [
        ("list", "broken plugin"),
        ("check toy-wait --target @", "broken plugin"),
        ("status --target @", "broken plugin"),
        ("check toy-wait --target @", "two of one id"),
    ],
    6: [
        ("check toy-wait --target @", "changed"),
        ("apply toy-wait --target @", "changed"),
        ("apply toy-wait --target @", "patched, then changed"),
        ("apply toy-wait --target @", "no room"),
        ("check toy-wait --forbid --target @", ""),
        ("status --expect none --target @", "applied"),
        ("status --target @", "patched, then changed"),
        ("status --target @", "no ledger"),
        ("revert --target @", "no ledger"),
        ("revert toy-wait --target @", ""),
    ],
}


class Broken:
    """A patch plugin whose hook fails."""

    @hookimpl
    def disagg_plugin(self) -> Extension:
        return Extension(name="toy-broken", summary="breaks", kind="patches", engines=("toy-disagg",))

    @hookimpl
    def disagg_patches(self, ctx: RankContext) -> Iterable[Patch]:
        raise RuntimeError("out of order")


class Twin(Broken):
    """A patch plugin that offers another patch under the name of a known one."""

    @hookimpl
    def disagg_patches(self, ctx: RankContext) -> Iterable[Patch]:
        return [Patch(id="toy-wait", why="Another.", package=["toy"], file="toy/server.py", edits=[])]


def table(heading: str) -> list[str]:
    """The first cells of the rows of a table, up to the blank line."""
    found = re.search(rf"\| {heading} \| \|\n\|---\|---\|\n((?:\|.*\n)+)", PAGE)
    assert found is not None
    return [line.split("|")[1].strip().strip("`") for line in found[1].splitlines()]


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    """An installation, while a plugin offers patches for it."""
    with installed_plugin(tmp_path, "toy-patches", ToyPatches()):
        yield install(tmp_path / "site")


def prepare(root: Path, how: str) -> None:
    if how == "newer":
        (root / "toy-1.2.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: toy\nVersion: 2.0\n")
    if how == "changed":
        (root / "toy/server.py").write_text(SERVER.replace("if peer in", "if peer not in"))
    if how in ("applied", "patched, then changed", "no ledger"):
        apply_patches([WAIT], target=root)
    if how == "patched, then changed":
        (root / "toy/server.py").write_text("mine = True\n")
    if how == "no ledger":
        (root / MANIFEST).unlink()


def test_the_page_lists_the_exit_codes_that_there_are() -> None:
    assert [int(code) for code in table("exit code")] == list(CASES)


def test_the_page_lists_the_states_that_there_are() -> None:
    assert set(table("state")) == set(get_args(State))


@pytest.mark.parametrize(
    ("code", "words", "how"), [(code, words, how) for code, cases in CASES.items() for words, how in cases]
)
def test_an_end_has_its_exit_code(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
    code: int,
    words: str,
    how: str,
) -> None:
    prepare(root, how)
    given = [word.replace("@", str(root)) for word in words.split()]
    more = {"broken plugin": Broken(), "two of one id": Twin()}.get(how)
    if more is not None:
        with installed_plugin(tmp_path / "more", "toy-broken", more):
            ran = Ran(capsys, *given)
    elif how == "no room":
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
        try:
            ran = Ran(capsys, *given)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    else:
        ran = Ran(capsys, *given)
    assert ran.code == code, ran.err
    assert len(ran.err.splitlines()) == (1 if code else 0)
    assert ran.err.startswith("disagg-run: error: ") == bool(code)


def states(ran: Ran) -> dict[str, tuple[str, str]]:
    return {each["id"]: (each["state"], each["detail"]) for each in json.loads(ran.out)}


def test_every_state_is_told_by_its_name(capsys: pytest.CaptureFixture[str], root: Path) -> None:
    def ran(*words: str) -> tuple[str, str]:
        return states(Ran(capsys, *words, "--target", root, "--format", "json"))["toy-wait"]

    assert ran("check", "toy-wait") == ("applicable", "")
    assert ran("apply", "toy-wait") == ("applied", "")
    assert ran("apply", "toy-wait") == ("already applied", "")
    assert ran("revert", "toy-wait") == ("reverted", "")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        state, detail = ran("apply", "toy-wait")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert state == "failed"
    assert detail.startswith(f"cannot patch {root}: file too large (")
    prepare(root, "changed")
    state, detail = ran("check", "toy-wait")
    assert state == "does not match"
    assert "'while True:' … does not stand in Server.wait" in detail
    prepare(root, "newer")
    assert ran("check", "toy-wait") == (
        "not needed",
        "from toy 2.0 on: the wait has a bound; the setting --wait-timeout instead",
    )
