"""Catalogues: what a program's argument parser takes, by version, as package data of its plugin.

A catalogue is a JSON document; ``disagg-run catalogue`` writes one from an installed program. Its schema:

``schema``       1
``command``      the program, as typed: ``python3 -m toy.server``
``version``      version of the distribution whose parser it is
``source``       where it was taken from, for people
``note``         oddities of the whole parser, for people (optional)
``underscores``  true where the parser itself turns ``--a_b`` into ``--a-b`` (optional)
``suffixes``     what the parser multiplies a ``size`` by, for each suffix that it takes: ``{"k": 1000}`` (optional)
``flags``        a list of records:

``names``        the spellings that the parser declares, the first is how messages call it; [] for a positional
``aliases``      further spellings it takes (optional)
``positional``   name of a positional argument (then ``names`` is [])
``arity``        values after the flag: 0, 1, n, ``?`` (none or one), ``*`` (any), ``+`` (one or more), ``1-2``
``metavar``      how help shows the values, where the arity does not say all (optional)
``type``         the name of the value's type in the parser's own source; for people
``kind``         how a value is checked; absent where nothing is known, and then only choices are checked:
                 ``str``, ``int``, ``float``, ``size`` (an integer, or one with a suffix: 8k), ``json`` (any
                 JSON), ``json_object``, ``json_or_text`` (a JSON object where it begins with a brace, else any text)
``literals``     texts taken besides those of the kind: ``["None"]``, ``["auto"]``
``choices``      texts allowed; with a kind of ``str`` exactly these; without a kind the parser may change the text
                 before it compares, so case, ``-`` and ``_`` do not count
``default``      the parser's default, where it is plain data (optional)
``negatable``    true for a switch that also has ``--no-NAME``, for each of its names and aliases
``repeatable``   true where each occurrence adds a value (argparse's append); otherwise the last one wins
``deprecated``   true where the parser warns; ``successor`` then says what to write instead, where it is known
``note``         what this record leaves out, for people
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, get_args

import attrs

from disagg_run.declarations import CatalogueRef
from disagg_run.errors import PluginError
from disagg_run.input_files import os_reason
from disagg_run.near_miss import nearest

SCHEMA = 1

Kind = Literal["str", "int", "float", "size", "json", "json_object", "json_or_text"]
KINDS: tuple[str, ...] = get_args(Kind)
#: Kinds whose values may be JSON objects, which merge by key.
OBJECT_KINDS = frozenset({"json", "json_object", "json_or_text"})


@attrs.frozen(kw_only=True, eq=False)
class FlagSpec:
    """One flag of a catalogue; compared by identity, each catalogue holds one record per flag."""

    #: Spellings as declared, then aliases; a negation (``--no-x``) is only in ``negations``.
    names: tuple[str, ...]
    #: Spellings that switch it off.
    negations: frozenset[str] = frozenset()
    #: Name of a positional argument; "" for a flag.
    positional: str = ""
    #: Fewest and most values; None = no limit.
    min_values: int = 1
    max_values: int | None = 1
    #: How a value is checked; None = not known.
    kind: Kind | None = None
    #: The type's name in the parser's own source.
    type: str = ""
    literals: tuple[str, ...] = ()
    #: Factor of each suffix that a ``size`` may have; empty = not known.
    suffixes: Mapping[str, int] = attrs.field(factory=dict)
    choices: tuple[str, ...] = ()
    #: The parser's default; None = none, or not known.
    default: Any = None
    repeatable: bool = False
    deprecated: bool = False
    #: What to write instead of a deprecated flag; "" = not known.
    successor: str = ""

    @property
    def name(self) -> str:
        """How messages call it, and its identity within the catalogue."""
        return self.names[0] if self.names else self.positional

    @property
    def takes_objects(self) -> bool:
        """Whether its value may be a JSON object, which merges by key."""
        return self.kind in OBJECT_KINDS and not self.repeatable


class Catalogue:
    """The flags that one program takes at one version; records are built when they are first looked up."""

    def __init__(self, document: Mapping[str, Any], *, program: str = "server") -> None:
        #: ``server`` or ``router``.
        self.program = program
        #: The command whose parser it is: ``python3 -m toy.server``.
        self.command = str(document.get("command", program))
        self.version = str(document["version"])
        #: Where it was taken from, for people.
        self.source = str(document.get("source", ""))
        #: Whether the parser reads ``_`` in a long flag's name as ``-``.
        self.underscores = bool(document.get("underscores"))
        self._suffixes: Mapping[str, int] = document.get("suffixes", {})
        self._raw: dict[str, Mapping[str, Any]] = {}
        for raw in document["flags"]:
            for name in _spellings(raw):
                self._raw[name] = raw
        self._specs: dict[str, FlagSpec | None] = {}
        self._built: dict[int, FlagSpec] = {}
        self._near: dict[str, str | None] = {}

    def __str__(self) -> str:
        return f"{self.command} {self.version}"

    def lookup(self, name: str) -> FlagSpec | None:
        """The flag of that name, alias or negation; a ``=value`` after it does not matter. None = there is none."""
        try:
            return self._specs[name]
        except KeyError:
            pass
        plain = self._plain(name)
        raw = self._raw.get(plain)
        spec = None
        if raw is not None:
            spec = self._built.get(id(raw))
            if spec is None:
                spec = self._built[id(raw)] = self._build(raw)
        self._specs[name] = spec
        return spec

    def is_negation(self, name: str) -> bool:
        """Whether ``name`` switches its flag off (``--no-x``)."""
        spec = self.lookup(name)
        return spec is not None and self._plain(name) in spec.negations

    def nearest(self, name: str) -> str | None:
        """The spelling most like ``name``, first what it may be short for; None = nothing is like it."""
        if name not in self._near:
            plain = self._plain(name)
            longer = next(iter(self.longer(name)), None)
            dashed = plain.replace("_", "-")
            self._near[name] = longer or nearest(plain, self._raw) or nearest(dashed, self._raw)
        return self._near[name]

    def longer(self, name: str) -> tuple[str, ...]:
        """The long flags that begin with ``name``: those that an argparse parser would take it as short for."""
        plain = self._plain(name)
        if not plain.startswith("--") or len(plain) < 4:
            return ()
        return tuple(sorted(other for other in self._raw if other.startswith(plain) and other != plain))

    def names(self) -> tuple[str, ...]:
        """Every spelling it knows, negations included, positionals not."""
        return tuple(self._raw)

    def flags(self) -> tuple[FlagSpec, ...]:
        """All flags in the catalogue's order, positionals not."""
        found = {id(spec): spec for spec in (self.lookup(name) for name in self._raw) if spec is not None}
        return tuple(found.values())

    def _plain(self, name: str) -> str:
        name = name.partition("=")[0]
        if self.underscores and name.startswith("--") and "_" in name:
            head, dot, keys = name.partition(".")
            return head.replace("_", "-") + dot + keys
        return name

    def _build(self, raw: Mapping[str, Any]) -> FlagSpec:
        negations = _negations(raw)
        kind = raw.get("kind")
        if kind is not None and kind not in KINDS:
            raise PluginError(f"catalogue of {self}: flag {raw['names'][0]!r} is of kind {kind!r}, known are {KINDS}")
        least, most = _arity(raw.get("arity", 1), raw["names"][0])
        return FlagSpec(
            names=tuple(name for name in (*raw["names"], *raw.get("aliases", ())) if name not in negations),
            negations=frozenset(negations),
            positional=raw.get("positional", ""),
            min_values=least,
            max_values=most,
            kind=kind,
            type=raw.get("type", ""),
            literals=tuple(raw.get("literals", ())),
            suffixes=self._suffixes if kind == "size" else {},
            choices=tuple(str(choice) for choice in raw.get("choices") or ()),
            default=raw.get("default"),
            repeatable=raw.get("repeatable", False),
            deprecated=raw.get("deprecated", False),
            successor=raw.get("successor", ""),
        )


def folded(text: str) -> str:
    """A choice as it is compared where the parser may change the text first."""
    return text.lower().replace("-", "_")


def _negations(raw: Mapping[str, Any]) -> set[str]:
    if not raw.get("negatable"):
        return set()
    names = (*raw["names"], *raw.get("aliases", ()))
    made = {"--no-" + name[2:] for name in names if name.startswith("--")}
    declared = {name for name in names if name in made}
    return declared or made


def _spellings(raw: Mapping[str, Any]) -> tuple[str, ...]:
    names = (*raw["names"], *raw.get("aliases", ()))
    return (*names, *sorted(_negations(raw).difference(names))) if raw.get("negatable") else names


def _arity(arity: Any, name: str) -> tuple[int, int | None]:
    known: dict[Any, tuple[int, int | None]] = {"?": (0, 1), "*": (0, None), "+": (1, None)}
    if isinstance(arity, int) and arity >= 0:
        return arity, arity
    if arity in known:
        return known[arity]
    least, dash, most = str(arity).partition("-")
    if dash and least.isdecimal() and most.isdecimal():
        return int(least), int(most)
    raise PluginError(f"catalogue: flag {name!r} has the arity {arity!r}: write a number, ?, *, + or MIN-MAX")


@functools.lru_cache(maxsize=64)
def load_catalogue(ref: CatalogueRef) -> Catalogue:
    """Read a catalogue, once per process.

    Raises PluginError naming the file where it is missing or no catalogue of this schema.
    """
    return read_catalogue(ref.file, program=ref.program)


def read_catalogue(file: Path, *, program: str = "server") -> Catalogue:
    """Read a catalogue file; as ``load_catalogue``, but each time anew. Raises PluginError in the same way."""
    try:
        document = json.loads(file.read_bytes())
        schema = document["schema"]
        if schema != SCHEMA:
            raise PluginError(f"catalogue {str(file)!r} is of schema {schema!r}, this disagg-run reads {SCHEMA}")
        return Catalogue(document, program=program)
    except OSError as error:
        raise PluginError(f"catalogue {str(file)!r} cannot be read: {os_reason(error)}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise PluginError(f"catalogue {str(file)!r} is no flag catalogue: {error}") from error


def pick_catalogue(refs: Iterable[CatalogueRef], program: str, version: str) -> tuple[Catalogue, bool] | None:
    """The catalogue to check ``program``'s flags at ``version`` with, and whether it is of exactly that version.

    Exact means the same version apart from a local part (``1.2+vendor`` is 1.2). Otherwise the nearest lower one, or
    the lowest where all are newer. Versions that are no PEP 440 versions are exact where the texts are equal, and come
    before all others. None where the program has no catalogue.
    """
    mine = [ref for ref in refs if ref.program == program]
    if not mine:
        return None
    for ref in mine:
        if ref.version == version:
            return load_catalogue(ref), True
    wanted = version_key(version)
    ordered = sorted(mine, key=lambda ref: version_key(ref.version))
    lower = [ref for ref in ordered if version_key(ref.version) <= wanted]
    best = lower[-1] if lower else ordered[0]
    exact = bool(wanted[0]) and version_key(best.version) == wanted
    return load_catalogue(best), exact


@functools.lru_cache(maxsize=256)
def version_key(version: str) -> tuple[bool, Any]:
    """A sort key: PEP 440 order without local parts; what is no such version comes first."""
    from packaging.version import InvalidVersion, Version

    try:
        return True, Version(Version(version).public)
    except InvalidVersion:
        return False, version
