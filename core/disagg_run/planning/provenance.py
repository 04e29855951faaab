"""Who set which value of a plan: a document beside the plan's own."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias

import attrs

from disagg_run.sources import Source
from disagg_run.spec.model import frozen_map

#: Version of the plan's document and of this one.
SCHEMA = 1

#: The sources of one value with the text that each gave: the winner first, then what it replaced.
Provenance: TypeAlias = tuple[tuple[Source, str], ...]


class _Later(Mapping[str, Provenance]):
    """A mapping that is made when it is first looked at: most plans are never asked for their sources."""

    def __init__(self, make: Callable[[], Mapping[str, Provenance]]) -> None:
        self._make = make
        self._made: Mapping[str, Provenance] | None = None

    def _mapping(self) -> Mapping[str, Provenance]:
        if self._made is None:
            self._made = self._make()
        return self._made

    def __getitem__(self, key: str) -> Provenance:
        return self._mapping()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._mapping())

    def __len__(self) -> int:
        return len(self._mapping())


def _source_values(
    values: Mapping[str, Provenance] | Callable[[], Mapping[str, Provenance]],
) -> Mapping[str, Provenance]:
    return _Later(values) if callable(values) else frozen_map(values)


@attrs.frozen(kw_only=True)
class SourceTable:
    """Who set which value of a plan."""

    #: JSON pointer into the plan document -> provenance. Flags are keyed by their written name, not by index:
    #: ``/ranks/0/groups/0/processes/0/argv/--tp-size``, leaves of JSON values below: ``…/--kv-config/kv_role``.
    values: Mapping[str, Provenance] = attrs.field(factory=dict, converter=_source_values)

    def to_json(self, digest: str) -> str:
        """The document of ``plan --sources``: an interned table, and [source index, text] pairs for each pointer."""
        index: dict[str, int] = {}
        pointers = {
            pointer: [[index.setdefault(str(source), len(index)), text] for source, text in provenance]
            for pointer, provenance in self.values.items()
        }
        document = {"schema": SCHEMA, "digest": digest, "sources": list(index), "values": pointers}
        return json.dumps(document, ensure_ascii=False, separators=(",", ":")) + "\n"
