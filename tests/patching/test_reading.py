"""Patches kept in files: read as docs/patches.md shows them, refused with file, line and what is wrong."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from disagg_run.errors import SpecError
from disagg_run.patching import read_patches
from disagg_run.patching.soundness import is_sound
from disagg_run.records import FileDigest, Patch

PAGE = (Path(__file__).parents[2] / "docs" / "patches.md").read_text(encoding="utf-8")
GOOD = re.findall(r"```yaml\n(patches:.*?)```", PAGE, re.DOTALL)[0]


def read(tmp_path: Path, text: str | bytes, digests: object = None) -> tuple[Patch, ...]:
    (tmp_path / "toy.yaml").write_bytes(text if isinstance(text, bytes) else text.encode())
    if digests is None:
        return read_patches(tmp_path / "toy.yaml")
    (tmp_path / "digests.json").write_text(digests if isinstance(digests, str) else json.dumps(digests))
    return read_patches(tmp_path / "toy.yaml", tmp_path / "digests.json")


@pytest.mark.parametrize("text", [GOOD, b"\xef\xbb\xbf" + GOOD.encode()], ids=["plain", "with a mark"])
def test_the_example_of_the_page_is_a_patch(tmp_path: Path, text: str | bytes) -> None:
    (patch,) = read(tmp_path, text)
    assert (patch.id, patch.package, patch.instead) == ("toy-wait-bound", ("toy",), "--wait-timeout")
    assert patch.edits[0].replacement == "self.event.wait(30)\n"
    assert is_sound(patch)


def test_digests_come_to_their_patch(tmp_path: Path) -> None:
    row = {"version": "1.2", "file": "toy/server.py", "before": "0" * 64, "after": "1" * 64}
    (patch,) = read(tmp_path, GOOD, [{"patch": "toy-wait-bound", **row}, {"patch": "toy-other", **row}])
    assert patch.digests == (FileDigest(**row),)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("    upstream:", "    upstraem:", "toy.yaml:4: unknown key 'upstraem': did you mean 'upstream'?"),
        ("        by: statements", "        by: syntax", "toy.yaml:13: by is text, not 'syntax'"),
        ("package: [toy]", "package: toy", "toy.yaml:5: package is a list of names, not 'toy'"),
        ('fixed_in: "1.4"', "fixed_in: 1.4", "toy.yaml:7: fixed_in is text, not 1.4"),
        ("    why: The server waits for its peer for ever.\n", "", "toy.yaml:2: the key 'why' is missing"),
        (
            "        anchor: |\n          while not self.ready:\n              continue\n",
            "",
            "the key 'anchor' is missing",
        ),
        ("    edits:\n", "    edits: none\n    edit:\n", "unknown key 'edit': did you mean 'edits'?"),
        ("patches:", "patch:", "a patch file is a list under the one key 'patches'"),
    ],
)
def test_what_is_wrong_is_told_with_its_line(tmp_path: Path, old: str, new: str, says: str) -> None:
    assert old in GOOD
    with pytest.raises(SpecError) as refusal:
        read(tmp_path, GOOD.replace(old, new, 1))
    assert says in str(refusal.value)
    assert str(refusal.value).startswith("toy.yaml:")


@pytest.mark.parametrize(
    ("digests", "says"),
    [
        ("[", "is damaged: Expecting value"),
        ({}, "is damaged: it is no list"),
        ([3], "is damaged: [0] names no patch"),
        ([{"patch": "toy-wait-bound"}], "is damaged: [0].version is missing"),
        (
            [{"patch": "toy-wait-bound", "version": 1.2, "file": "x", "before": "", "after": ""}],
            "is damaged: [0].version is 1.2, not text",
        ),
    ],
)
def test_digests_that_are_none_are_one_clear_line(tmp_path: Path, digests: object, says: str) -> None:
    with pytest.raises(SpecError) as refusal:
        read(tmp_path, GOOD, digests)
    assert str(refusal.value).startswith(f"the digest file '{tmp_path}/digests.json' {says}")


def test_a_file_that_cannot_be_read_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"the patch file '.*/none\.yaml' cannot be read: no such file or directory"):
        read_patches(tmp_path / "none.yaml")
    with pytest.raises(SpecError, match="is no UTF-8 text"):
        read(tmp_path, b"patches: \xe9")
