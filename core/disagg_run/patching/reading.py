"""Patches kept as files: YAML that a plugin ships, one or more patches in each, with the digests in a JSON file beside.

    patches:
      - id: toy-wait-bound
        why: The server waits for its peer for ever.
        upstream: https://example.org/toy/pull/7
        package: [toy]
        versions: ">=1.0,<1.4"
        fixed_in: "1.4"
        file: toy/server.py
        edits:
          - scope: Server.wait
            by: statements
            anchor: |
              while not self.ready:
                  continue
            replacement: |
              self.event.wait(30)

The keys are the fields of ``Patch`` and ``Edit``.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import attrs

from disagg_run.errors import SpecError
from disagg_run.input_files import read_text
from disagg_run.patching.stored import Misfit, record
from disagg_run.records import Edit, FileDigest, Patch
from disagg_run.yamlfile import Path as Keys
from disagg_run.yamlfile import YamlDocument, read_yaml

_LISTS = ("package", "requires", "sets")
_FLAGS = ("required", "optional")


def read_patches(path: Path, digests: Path | None = None) -> tuple[Patch, ...]:
    """The patches of one YAML file.

    ``digests``: a JSON list of objects with ``patch`` (an id), ``version``, ``file``, ``before`` and ``after``.
    Raises SpecError with ``file:line`` for unknown or missing keys and values of a wrong type, and for a file that
    cannot be read.
    """
    document = read_yaml(read_text(path, "patch file"), path.name)
    top = document.value
    if not isinstance(top, dict) or set(top) != {"patches"} or not isinstance(top["patches"], list):
        raise SpecError(f"{document.place()}: a patch file is a list under the one key 'patches'")
    known = _digests(digests) if digests is not None else {}
    return tuple(_patch(document, index, known) for index in range(len(top["patches"])))


def _digests(path: Path) -> dict[str, list[FileDigest]]:
    found: dict[str, list[FileDigest]] = {}
    try:
        rows = json.loads(read_text(path, "digest file"))
        if not isinstance(rows, list):
            raise Misfit("it is no list")
        for index, row in enumerate(rows):
            if not isinstance(row, dict) or not isinstance(row.get("patch"), str):
                raise Misfit(f"[{index}] names no patch")
            found.setdefault(row.pop("patch"), []).append(record(FileDigest, row, f"[{index}]"))
    except (Misfit, ValueError, RecursionError) as error:
        raise SpecError(f"the digest file {str(path)!r} is damaged: {error}") from None
    return found


def _patch(document: YamlDocument, index: int, digests: dict[str, list[FileDigest]]) -> Patch:
    place: Keys = ("patches", index)
    names = [field.name for field in attrs.fields(Patch) if field.name not in ("digests", "planned_for", "waiver")]
    fields = _fields(document, place, document.value["patches"][index], names)
    edits = fields.pop("edits", None)
    if not isinstance(edits, list) or not edits:
        raise SpecError(f"{document.place(place)}: a patch needs a list of 'edits'")
    names = [field.name for field in attrs.fields(Edit)]
    read = [
        Edit(**_required(document, (*place, "edits", at), _fields(document, (*place, "edits", at), edit, names), Edit))
        for at, edit in enumerate(edits)
    ]
    found = _required(document, place, fields, Patch)
    return Patch(**found, edits=read, digests=digests.get(found["id"], ()))


def _fields(document: YamlDocument, place: Keys, data: object, names: Iterable[str]) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise SpecError(f"{document.place(place)}: here stands no mapping of keys to values")
    for key, value in data.items():
        if key not in names:
            near = difflib.get_close_matches(key, names, 1)
            raise SpecError(
                f"{document.place((*place, key))}: unknown key {key!r}",
                remedy=f"did you mean {near[0]!r}?" if near else f"known are {', '.join(names)}",
            )
        if key != "edits" and not _fits(key, value):
            kind = "a list of names" if key in _LISTS else "true or false" if key in _FLAGS else "text"
            raise SpecError(f"{document.place((*place, key))}: {key} is {kind}, not {value!r}")
    return dict(data)


def _fits(key: str, value: object) -> bool:
    if key in _LISTS:
        return isinstance(value, list) and all(isinstance(each, str) for each in value)
    if key in _FLAGS:
        return isinstance(value, bool)
    return value in ("text", "statements") if key == "by" else isinstance(value, str)


def _required(document: YamlDocument, place: Keys, fields: dict[str, Any], record: type[Any]) -> dict[str, Any]:
    for field in attrs.fields(record):
        if field.default is attrs.NOTHING and field.name not in fields:
            raise SpecError(f"{document.place(place)}: the key {field.name!r} is missing")
    return fields
