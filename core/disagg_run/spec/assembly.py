"""Layers folded into one ``LaunchSpec``: later layers win, and what contradicts becomes a notice."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from disagg_run.sources import Layer, Source
from disagg_run.spec.layers import Assignment
from disagg_run.spec.model import BenchSpec, LaunchSpec, ProcessSpec, RoleSpec, RouterSpec
from disagg_run.spec.option import Path


class Fold:
    """The values of all layers, as they come in from the lowest layer to the highest."""

    def __init__(self) -> None:
        self.values: dict[Path, Any] = {}
        self.winners: dict[Path, Assignment] = {}
        self.sources: dict[str, Source] = {}
        self._contract: dict[Path, Assignment] = {}

    def add(self, assignments: Iterable[Assignment]) -> None:
        """Take what one layer says, its broad values before its narrow ones."""
        for given in assignments:
            path = given.path
            if given.type == "args":
                self.values[path] = (*self.values.get(path, ()), given.value)
            elif given.type == "simulation":
                self.values[path] = (*self.values.get(path, ()), *given.value)
            elif given.type == "names":
                self._unite(given)
            else:
                self.values[path] = given.value
            self.winners[path] = given
            self.sources[".".join(path)] = given.place.source
            if given.place.source.layer is Layer.CONTRACT:
                self._contract[path] = given

    def _unite(self, given: Assignment) -> None:
        names = self.values.get(given.path, ())
        if given.value not in names:
            self.values[given.path] = (*names, given.value)
        self.sources[".".join((*given.path, given.value))] = given.place.source

    def notices(self) -> tuple[tuple[str, Source], ...]:
        """A remark for each value of a file that holds against another one of the environment contract."""
        found: dict[str, Source] = {}
        for path, before in self._contract.items():
            winner = self.winners[path]
            source = winner.place.source
            of_file = source.layer in (Layer.RUN_FILE, Layer.MASTER_CONFIG)
            if of_file and winner.type not in ("args", "names", "simulation") and winner.value != before.value:
                text = (
                    f"{source} sets {winner.key} to {winner.text!r}, "
                    f"{before.place.text} says {before.text!r}: the {source.layer.label} holds"
                )
                found[text] = source
        return tuple(found.items())

    def spec(self) -> LaunchSpec:
        """The launch spec of all values; engine and model must be among them."""
        tree: dict[str, Any] = {}
        for path, value in self.values.items():
            below = tree
            for part in path[:-1]:
                below = below.setdefault(part, {})
            below[path[-1]] = value
        kinds = {"prefill": RoleSpec, "decode": RoleSpec, "router": RouterSpec, "bench": BenchSpec}
        for name, kind in kinds.items():
            tree[name] = kind(**tree.get(name, {}))
        tree["processes"] = {name: ProcessSpec(**parts) for name, parts in tree.get("processes", {}).items()}
        return LaunchSpec(**tree, sources=self.sources, notices=self.notices())
