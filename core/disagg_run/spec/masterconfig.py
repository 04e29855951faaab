"""Master-config files: named benchmark entries, each a search space of points, as input of a launch.

``masterconfig_entry`` shows what an entry looks like. A file holds entries of other kinds too, so an entry is read only
when it is asked for, and then strictly.
"""

from __future__ import annotations

from pathlib import Path

import attrs

from disagg_run.errors import SpecError
from disagg_run.input_files import read_text
from disagg_run.near_miss import did_you_mean
from disagg_run.plain_text import listed
from disagg_run.spec.masterconfig_entry import Entry, read_entry
from disagg_run.spec.masterconfig_node import ConfigNode
from disagg_run.yamlfile import YamlDocument, read_yaml


@attrs.frozen(kw_only=True)
class EntryLine:
    """An entry in the list of a file's entries, with what it says of itself before it is read strictly."""

    name: str
    framework: str
    model: str


class MasterConfig:
    """A master-config file."""

    def __init__(self, document: YamlDocument) -> None:
        self._top = ConfigNode(document=document, path=(), value=document.value)
        if not isinstance(document.value, dict) or not document.value:
            raise self._top.error("a master config is a mapping of entries by name")

    def lines(self) -> tuple[EntryLine, ...]:
        """The disaggregated entries, in the order of the file; also one whose ``disagg`` is neither true nor false."""
        return tuple(
            EntryLine(name=name, framework=str(value.get("framework", "")), model=str(value.get("model", "")))
            for name, value in self._top.value.items()
            if isinstance(value, dict) and value.get("disagg", False) is not False
        )

    def others(self) -> tuple[str, ...]:
        """The names of the entries that do not say ``disagg: true``."""
        listed_ones = {line.name for line in self.lines()}
        return tuple(name for name in self._top.value if name not in listed_ones)

    def entry(self, name: str) -> Entry:
        """The entry of that name; SpecError where there is none, or where something in it is wrong."""
        if name not in self._top.value:
            known = [line.name for line in self.lines()]
            raise SpecError(
                f"{self._top.document.name} has no entry {name!r}",
                remedy=f"{did_you_mean(name, known)} it has {listed(known, 20) or 'none'}".lstrip(),
            )
        return read_entry(name, self._top.below(name))

    def choose(self, name: str | None) -> Entry:
        """The entry of that name, or the only one that is disaggregated; SpecError where there is a choice."""
        known = [line.name for line in self.lines()]
        if name is None and len(known) != 1:
            raise SpecError(
                f"{self._top.document.name} has {len(known)} disaggregated entries",
                remedy=f"choose one with --entry: {listed(known, 20)}" if known else "give another file",
            )
        return self.entry(known[0] if name is None else name)


def read_master_config(path: Path) -> MasterConfig:
    """Read the master-config file at ``path``; SpecError where it cannot be read or is no YAML mapping."""
    return MasterConfig(read_yaml(read_text(path, "master config"), path.name))
