"""A part of a master-config document that knows its line: what it must be, and how an error names it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from disagg_run.errors import SpecError
from disagg_run.near_miss import did_you_mean
from disagg_run.sources import Layer, Source
from disagg_run.spec.layers import Place
from disagg_run.yamlfile import Path, YamlDocument


@attrs.frozen(kw_only=True)
class ConfigNode:
    """One value of the document with its path."""

    document: YamlDocument = attrs.field(repr=False)
    path: Path
    value: Any

    def place(self, name: str = "") -> Place:
        """Where it stands, as the place of the values that it gives; ``name``: what messages call it."""
        where = self.document.place(self.path)
        # Indexes and the entry's name say no more than the line does.
        keys = [part for part in self.path[1:] if isinstance(part, str)]
        text = name or ".".join(
            keys[-2:] if len(keys) > 1 and keys[-2] in ("prefill", "decode", "router") else keys[-1:]
        )
        return Place(source=Source(layer=Layer.MASTER_CONFIG, where=where), text=f"{where}: {text}" if text else where)

    def error(self, reason: str, *, remedy: str = "") -> SpecError:
        """An error of this place."""
        return self.place().error(reason, remedy=remedy)

    def below(self, key: str | int) -> ConfigNode:
        """The part under a key that exists."""
        return ConfigNode(document=self.document, path=(*self.path, key), value=self.value[key])

    def mapping(self, *, needed: tuple[str, ...], others: tuple[str, ...] = ()) -> Mapping[str, ConfigNode]:
        """Its parts by key; SpecError for what is no mapping, for an unknown key, and for one that misses."""
        if not isinstance(self.value, dict):
            raise self.error("a mapping is expected here")
        known = (*needed, *others)
        for key in self.value:
            if key not in known:
                meant = did_you_mean(key.replace("_", "-").lower(), known)
                remedy = meant or f"known keys are {', '.join(known)}"
                raise Place(source=self.place().source, text=self.below(key).place().source.where).error(
                    f"unknown key {key!r}", remedy=remedy
                )
        for key in needed:
            if key not in self.value:
                raise self.error(f"the key {key!r} is missing")
        return {key: self.below(key) for key in self.value}

    def items(self) -> tuple[ConfigNode, ...]:
        """The items of a list that is not empty."""
        if not isinstance(self.value, list) or not self.value:
            raise self.error("a list with at least one item is expected here")
        return tuple(self.below(index) for index in range(len(self.value)))

    def text(self) -> str:
        """A scalar as it is written."""
        written = self.document.text(self.path)
        if self.value is None or written is None or not written.strip():
            raise self.error("one value is expected here")
        return written

    def whole(self, minimum: int) -> int:
        """A whole number of at least ``minimum``."""
        if not isinstance(self.value, int) or isinstance(self.value, bool) or self.value < minimum:
            raise self.error(f"{self.document.text(self.path)!r} is no whole number of at least {minimum}")
        return self.value

    def switch(self) -> bool:
        """True or false."""
        if not isinstance(self.value, bool):
            raise self.error(f"{self.document.text(self.path)!r} is neither true nor false")
        return self.value
