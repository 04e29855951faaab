"""The record that an installation carries of its patches: which they are, what they changed, what is under way."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

import attrs

from disagg_run.errors import PatchError
from disagg_run.patching.ordering import file_of, is_inside
from disagg_run.patching.plain_files import read_plain
from disagg_run.patching.plain_files import sha256 as sha256  # manifests and patches are known by it
from disagg_run.patching.stored import Misfit, record
from disagg_run.planning.document import to_data
from disagg_run.records import Patch
from disagg_run.spec.model import as_tuple, frozen_map

SCHEMA = 1
_DIGEST = re.compile("[0-9a-f]{64}")
#: In the import root.
MANIFEST = "disagg-run-patches.json"
#: The manifest that a change ends with, written before it begins.
NEXT = "disagg-run-patches.json.next"
LOCK = ".disagg-run-patches.lock"
#: Beside each patched file.
BACKUP_SUFFIX = ".disagg-run-orig"
NEW_SUFFIX = ".disagg-run-new"
#: The file as it was before the change that is under way.
OLD_SUFFIX = ".disagg-run-old"
#: Beside the manifest: one that says what is to be, before it counts. It is written first, so that whoever comes after
#: a kill knows what may lie about.
BEGUN = MANIFEST + NEW_SUFFIX


@attrs.frozen(kw_only=True)
class PatchedFile:
    """One patched file, by digests."""

    #: SHA-256 of the file as it was, which is that of its backup.
    original: str
    #: SHA-256 of the file as it is now.
    current: str
    #: Modification time of the original in nanoseconds: it comes back with its bytes.
    mtime_ns: int


@attrs.frozen(kw_only=True)
class Applied:
    """One patch in the ledger."""

    patch: Patch
    #: Distribution and version that it was applied to.
    package: str
    version: str
    #: Reference of the waiver; "" = none was given.
    waiver: str = ""
    #: When, in seconds since the epoch.
    time: float = 0.0


@attrs.frozen(kw_only=True)
class Manifest:
    """All patches of one import root."""

    #: File, relative to the import root -> its digests.
    files: Mapping[str, PatchedFile] = attrs.field(factory=dict, converter=frozen_map)
    applied: tuple[Applied, ...] = attrs.field(default=(), converter=as_tuple)
    #: A change under way: the manifest to be, which is finished by whoever comes next. Files are listed even where they
    #: go back to their original.
    pending: Manifest | None = None

    def to_json(self) -> str:
        """The manifest as text."""
        return json.dumps({"schema": SCHEMA, **to_data(self)}, indent=1, ensure_ascii=False) + "\n"


def read_manifest(root: Path, name: str = MANIFEST) -> Manifest:
    """The manifest of an import root, or one that is not yet it; an empty one where there is none.

    Raises PatchError for one that cannot be read.
    """
    path = root / name
    try:
        text = read_plain(path).decode()
    except (FileNotFoundError, NotADirectoryError):
        return Manifest()
    except UnicodeDecodeError as error:
        raise PatchError(f"cannot read {path}: {error}", remedy="reinstall the package, then remove the file") from None
    try:
        return _manifest(json.loads(text), path)
    except (Misfit, ValueError, RecursionError) as error:
        raise PatchError(f"{path} is damaged: {error}", remedy="reinstall the package, then remove the file") from None


def _manifest(data: object, path: Path) -> Manifest:
    """Raises Misfit for data that are no manifest, PatchError for one of another version."""
    if not isinstance(data, dict):
        raise Misfit("it is no object")
    if "schema" not in data:
        raise Misfit("schema is missing")
    if data.pop("schema") != SCHEMA:
        raise PatchError(
            f"{path} was written by another version of disagg-run", remedy="revert the patches with that version"
        )
    for key in ("files", "applied"):
        if key not in data:
            raise Misfit(f"{key} is missing")
    found = record(Manifest, data, "")
    found.to_json().encode()  # a ValueError for half a surrogate pair, which no file can be named by
    _check(found, "")
    if bool(found.files) != bool(found.applied):
        raise Misfit("it lists patches without files" if found.applied else "it lists files without patches")
    return found


def _check(manifest: Manifest, place: str) -> None:
    for name, file in manifest.files.items():
        if not is_inside(name):
            raise Misfit(f"{place}files has {name!r}, which is no file of the import root")
        if not (_DIGEST.fullmatch(file.original) and _DIGEST.fullmatch(file.current)):
            raise Misfit(f"{place}files[{name!r}] has a digest that is none")
        if not -(2**63) <= file.mtime_ns < 2**63:
            raise Misfit(f"{place}files[{name!r}].mtime_ns is {file.mtime_ns}, which is no time of a file")
    for each in manifest.applied if manifest.files else ():
        for name in (file_of(each.patch, edit) for edit in each.patch.edits if not edit.optional):
            if name not in manifest.files:
                raise Misfit(f"{place}files lacks {name!r}, which {each.patch.id!r} of {place}applied changes")
    ids = [each.patch.id for each in manifest.applied]
    if len(set(ids)) != len(ids):
        raise Misfit(f"{place}applied has a patch twice")
    if manifest.pending is not None:
        if not manifest.pending.files:
            raise Misfit(f"{place}pending lists no files")
        _check(manifest.pending, "pending.")
