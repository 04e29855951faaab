"""``disagg-run patches``: what it prints, and its exit codes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from disagg_run.cli.main import main
from disagg_run.testing.distributions import installed_plugin
from tests.patching.test_planned import ToyPatches, planned
from tests.patching.toy import SERVER, digests, install


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    """An installation, while a plugin offers patches for it."""
    with installed_plugin(tmp_path, "toy-patches", ToyPatches()):
        yield install(tmp_path / "site")


class Ran:
    """A command that was run."""

    def __init__(self, capsys: pytest.CaptureFixture[str], *words: object) -> None:
        self.code = main(["patches", *map(str, words)])
        captured = capsys.readouterr()
        self.out, self.err = captured.out, captured.err

    def rows(self) -> list[list[str]]:
        """The table's rows, by words."""
        return [line.split() for line in self.out.splitlines()[1:]]


def test_list_names_what_plugins_offer_and_what_comes_after(capsys: pytest.CaptureFixture[str], root: Path) -> None:
    ran = Ran(capsys, "list")
    assert ran.code == 0
    assert "toy-wait" in ran.out
    assert "from 2.0 on: the setting --wait-timeout" in ran.out
    found = {each["id"]: each for each in json.loads(Ran(capsys, "list", "--format", "json").out)}
    assert found["toy-reaper"]["plugin"] == "toy-patches"
    assert found["toy-reaper"]["requires"] == ["toy-finish"]
    assert found["toy-reaper"]["why"]


def test_show_is_a_page_and_a_diff(capsys: pytest.CaptureFixture[str], root: Path) -> None:
    page = Ran(capsys, "show", "toy-wait").out
    assert "upstream    https://example.org/toy/1" in page
    assert "+until = time.monotonic() + 30" in page
    diff = Ran(capsys, "show", "toy-reaper", "--target", root).out
    assert "--- a/toy/server.py\n+++ b/toy/server.py\n" in diff
    assert "+            self.reap()\n" in diff
    assert "+        server.handle(queue.get(timeout=1))\n" in diff
    assert digests(root) == digests(root)


def test_check_apply_status_and_revert_go_through_the_life_of_a_patch(
    capsys: pytest.CaptureFixture[str], root: Path
) -> None:
    before = digests(root)
    check = Ran(capsys, "check", "bounds", "--target", root)
    assert (check.code, [row[:2] for row in check.rows()]) == (
        0,
        [["toy-finish", "applicable"], ["toy-wait", "applicable"]],
    )
    assert digests(root) == before
    assert [row[1] for row in Ran(capsys, "apply", "bounds", "--target", root, "--waiver", "w-1").rows()] == [
        "applied"
    ] * 2
    assert Ran(capsys, "apply", "bounds", "--target", root).out.count("already applied") == 2
    (ledger,) = json.loads(Ran(capsys, "status", "--target", root, "--format", "json").out)
    assert ledger["root"] == str(root)
    assert [entry["waiver"] for entry in ledger["patches"]] == ["w-1", "w-1"]
    assert ledger["patches"][0]["files"][0]["before"] == before["toy/server.py"]
    assert "waiver: w-1" in Ran(capsys, "status", "--target", root).out
    assert Ran(capsys, "revert", "toy-wait", "--target", root).rows()[0][:2] == ["toy-wait", "reverted"]
    assert Ran(capsys, "revert", "--target", root).rows()[0][:2] == ["toy-finish", "reverted"]
    assert digests(root) == before
    assert Ran(capsys, "status", "--target", root).out == "no patch is applied\n"
    assert Ran(capsys, "revert", "--target", root).out == "no patch is applied\n"


def test_B71_an_installation_can_be_asked_to_have_no_patches(capsys: pytest.CaptureFixture[str], root: Path) -> None:
    """Fault B71: a no-patches mode that fails if any would apply, or is applied."""
    assert Ran(capsys, "status", "--expect", "none", "--target", root).code == 0
    forbidden = Ran(capsys, "check", "toy-wait", "--forbid", "--target", root)
    assert forbidden.code == 6
    assert "source patches are forbidden here, and 'toy-wait' change" in forbidden.err
    Ran(capsys, "apply", "toy-wait", "--target", root)
    found = Ran(capsys, "status", "--expect", "none", "--target", root)
    assert found.code == 6
    assert "has the patches 'toy-wait': revert them" in found.err


def test_what_does_not_match_is_shown_for_each_patch_and_ends_with_6(
    capsys: pytest.CaptureFixture[str], root: Path
) -> None:
    (root / "toy/server.py").write_text(SERVER.replace("if peer in", "if peer not in"))
    for words in (["check"], ["apply"]):
        ran = Ran(capsys, *words, "bounds", "--target", root)
        assert ran.code == 6
        assert "toy-finish" in ran.out
        assert ran.err.startswith("disagg-run: error: patch 'toy-wait' does not match toy 1.2: toy/server.py:")
        assert len(ran.err.splitlines()) == 1
    states = json.loads(Ran(capsys, "apply", "bounds", "--target", root, "--format", "json").out)
    assert {state["id"]: state["state"] for state in states} == {
        "toy-finish": "applicable",
        "toy-wait": "does not match",
    }


def test_the_patches_of_a_plan_need_no_plugin(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    root = install(tmp_path / "site")
    (tmp_path / "plan.json").write_text(planned("bounds").to_json())
    ran = Ran(capsys, "apply", "--plan", tmp_path / "plan.json", "--target", root)
    assert (ran.code, [row[1] for row in ran.rows()]) == (0, ["applied", "applied"])


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["check", "toy-wat", "--target", "."], 3, "there is no patch or set 'toy-wat': did you mean 'toy-wait'?"),
        (["check", "--target", "."], 2, "no patch is named"),
        (["apply", "toy-wait", "--plan", "x", "--target", "."], 2, "patches and a plan are given"),
        (
            ["apply", "--plan", "nowhere.json"],
            3,
            "the plan file 'nowhere.json' cannot be read: no such file or directory",
        ),
        (["check", "toy-wait", "--target", "nowhere"], 6, "there is no directory 'nowhere'"),
        (["check", "toy-wait", "--target", ".", "--python", "python3"], 6, "a directory and an interpreter are given"),
        (["check", "toy-wait", "--python", "python9"], 6, "cannot run the interpreter 'python9'"),
        (["revert", "toy-wait", "--target", "."], 6, "patch 'toy-wait' is not applied here"),
        (["show", "toy-wait", "--version", "1", "--target", "."], 2, "--version and an installation are given"),
        (["frobnicate"], 2, "no such command 'frobnicate'"),
    ],
)
def test_bad_input_is_one_clear_line(
    capsys: pytest.CaptureFixture[str],
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    code: int,
    says: str,
) -> None:
    monkeypatch.chdir(root)
    ran = Ran(capsys, *words)
    assert (ran.code, ran.out) == (code, "")
    assert ran.err.startswith(f"disagg-run: error: {says}")
    assert len(ran.err.splitlines()) == 1


def test_a_change_that_was_not_finished_is_told_and_finished_by_the_next_apply(
    capsys: pytest.CaptureFixture[str], root: Path
) -> None:
    from disagg_run.patching.manifest import MANIFEST, Manifest, read_manifest

    before = digests(root)
    Ran(capsys, "apply", "toy-wait", "--target", root)
    after = digests(root)
    # As a kill between the manifest and the first rename leaves it.
    done = read_manifest(root)
    (root / "toy/server.py").rename(root / "toy/server.py.disagg-run-new")
    (root / "toy/server.py").write_text(SERVER)
    (root / MANIFEST).write_text(Manifest(pending=done).to_json())
    for words in (["status"], ["check", "toy-wait"]):
        ran = Ran(capsys, *words, "--target", root)
        assert ran.code == 6
        assert "was begun and not finished" in ran.err
    assert Ran(capsys, "apply", "toy-wait", "--target", root).rows()[0][1] == "already"
    assert digests(root) == after
    Ran(capsys, "revert", "--target", root)
    assert digests(root) == before
