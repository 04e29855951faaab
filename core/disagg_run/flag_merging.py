"""Merging flags: one value per flag, the later layer's, with everything that it replaced."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import attrs

from disagg_run.catalogue import Catalogue, FlagSpec
from disagg_run.errors import FlagError
from disagg_run.flag_claims import Claim, Contest, Node, json_text, leaf_sources, object_tree, plain_value, words_text
from disagg_run.records import Flag
from disagg_run.sources import CORE_DEFAULT, Source

#: What a parser takes for a value although it begins with a dash.
NUMBER = re.compile(r"-(\d+\.?\d*|\.\d+)\Z")
#: A JSON value nested deeper than this is a slip, and more than its readers can walk.
MAX_DEPTH = 40
_NAME = re.compile(r"--?[^\s=-][^\s=]*\Z")


@attrs.frozen(kw_only=True)
class MergedFlag:
    """One flag of a finished command, or one occurrence of a repeatable flag."""

    #: As the winner wrote it: ``--tp-size``, ``-tp``, ``--no-x``.
    name: str
    #: Its values as argv words; () = a switch, or a JSON object.
    values: tuple[str, ...] = ()
    #: Its JSON object; None = ``values`` say all.
    json: Mapping[str, Any] | None = None
    #: Who set it; of a JSON object, the highest layer that set one of its leaves.
    source: Source
    #: Who set each leaf of the JSON object, by dotted key; a key that holds a dot stands in quotes.
    leaf_sources: Mapping[str, Source] = attrs.field(factory=dict)
    #: What was replaced, the nearest first: source and text as in ``text``, a JSON leaf as ``key.key=value``.
    replaced: tuple[tuple[Source, str], ...] = ()

    @property
    def text(self) -> str:
        """The value as messages show it: words quoted for a shell, a switch by its name, or the JSON."""
        return words_text(self.name, self.values) if self.json is None else json_text(self.json)


def merge_flags(flags: Iterable[Flag], catalogue: Catalogue | None, *, where: str) -> tuple[MergedFlag, ...]:
    """One value per flag, in the order in which flags first appear.

    Two names are one flag where the catalogue says so (aliases, negations); without an entry the name itself counts. A
    later layer replaces. Within a layer, plugins that differ (or one that differs from itself) are a ConflictError
    naming both, unless a later layer settles it; values without a plugin narrow in the given order, the last one wins.
    JSON objects merge by key, by the same rules for each leaf; text that begins with a brace is an object where the
    catalogue says that the flag takes one, or a plugin gives it one. Repeatable flags keep every occurrence, in order.

    ``where``: the process, for messages. Raises FlagError for broken JSON and for values that no argv can carry.
    """
    groups: dict[str, _Group] = {}
    for flag in flags:
        spec = catalogue.lookup(flag.name) if catalogue else None
        identity = spec.name if spec else flag.name
        group = groups.get(identity)
        if group is None:
            group = groups[identity] = _Group(spec)
        group.flags.append(flag)
    return tuple(merged for group in groups.values() for merged in group.merge(catalogue, where))


@attrs.define
class _Group:
    """Everything that was given to one flag."""

    spec: FlagSpec | None
    flags: list[Flag] = attrs.field(factory=list)

    def merge(self, catalogue: Catalogue | None, where: str) -> Iterator[MergedFlag]:
        """The flag's one value; each one of a repeatable flag."""
        for flag in self.flags:
            _check_words(flag, where)
        takes_objects = self.spec is not None and self.spec.takes_objects
        if self.spec is not None and self.spec.repeatable:
            yield from map(_alone, self.flags)
        elif len(self.flags) == 1 and self.flags[0].json is None and not takes_objects:
            yield _alone(self.flags[0])
        else:
            yield self._settle(catalogue, takes_objects or any(flag.json is not None for flag in self.flags), where)

    def _settle(self, catalogue: Catalogue | None, takes_objects: bool, where: str) -> MergedFlag:
        negations = self.spec.negations if self.spec else ()
        ranked = sorted(self.flags, key=_layer)
        contest = Contest(ranked[0].name, where, ranked[0].source or CORE_DEFAULT)
        for flag in ranked:
            source = flag.source or CORE_DEFAULT
            negated = bool(negations) and catalogue is not None and catalogue.is_negation(flag.name)
            contest.add(flag.name, _node(flag, source, negated, takes_objects, where), source)
        replaced, node = contest.finish(), contest.node
        if isinstance(node, Claim) or node is None:
            values, source = (node.value, node.source) if node else ((), contest.source)
            return MergedFlag(name=contest.name, values=values, source=source, replaced=replaced)
        sources = dict(leaf_sources(node))
        value = plain_value(node)
        return MergedFlag(name=contest.name, json=value, source=node.source, leaf_sources=sources, replaced=replaced)


def _layer(flag: Flag) -> int:
    return (flag.source or CORE_DEFAULT).layer


def _alone(flag: Flag) -> MergedFlag:
    return MergedFlag(name=flag.name, values=flag.values, json=flag.json, source=flag.source or CORE_DEFAULT)


def _node(flag: Flag, source: Source, negated: bool, takes_objects: bool, where: str) -> Node:
    """What a flag gives: an object's leaves, or words."""
    given = flag.json
    if given is None and takes_objects and len(flag.values) == 1 and flag.values[0].lstrip().startswith("{"):
        given = _read_object(flag.name, flag.values[0], source, where)
    if given is None:
        return Claim(flag.values, (negated, flag.values), words_text(flag.name, flag.values), source)
    if _is_deep(given):
        raise FlagError(f"{where}: {too_deep(flag.name, source)}")
    try:
        return object_tree(given, source, flag.leaf_sources)
    except (TypeError, ValueError) as error:
        raise FlagError(f"{where}: the value of {flag.name} ({source}) is no JSON: {error}") from error


def too_deep(name: str, source: Source) -> str:
    """What is wrong with a JSON value that is nested too deep."""
    return f"the JSON of {name} ({source}) is nested deeper than {MAX_DEPTH} levels"


def _is_deep(value: Any) -> bool:
    """Whether JSON data is nested deeper than ``MAX_DEPTH``; walked level by level, so that no depth is too much."""
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH):
        level = [
            item
            for each in level
            if isinstance(each, (Mapping, list, tuple))
            for item in (each.values() if isinstance(each, Mapping) else each)
        ]
        if not level:
            return False
    return True


def _read_object(name: str, text: str, source: Source, where: str) -> Mapping[str, Any]:
    twice: list[str] = []

    def pairs_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            keys = [key for key, _ in pairs]
            twice.extend(key for key in found if keys.count(key) > 1)
        return found

    try:
        value: dict[str, Any] = json.loads(text, object_pairs_hook=pairs_of)
    except json.JSONDecodeError as error:
        raise broken_json(name, text, error, source, where) from error
    except RecursionError:
        raise FlagError(f"{where}: {too_deep(name, source)}") from None
    except ValueError as error:
        # A number of thousands of digits; the rest of the text is about Python.
        reason = str(error).partition(";")[0]
        raise FlagError(
            f"{where}: the JSON of {name} ({source}) cannot be read: {reason[:1].lower()}{reason[1:]}"
        ) from error
    if twice:
        raise FlagError(
            f"{where}: the JSON of {name} ({source}) has the key {twice[0]!r} twice", remedy="leave one out"
        )
    return value


def broken_json(name: str, text: str, error: json.JSONDecodeError, source: Source, where: str) -> FlagError:
    """The error for a JSON value that cannot be read: flag, source, position, and the text around it."""
    near = text[max(0, error.pos - 20) : error.pos + 20]
    place = f"line {error.lineno} column {error.colno}" if "\n" in text else f"column {error.colno}"
    reason = error.msg[:1].lower() + error.msg[1:]
    return FlagError(
        f"{where}: the JSON of {name} ({source}) is broken at {place}, near {near!r}: {reason}",
        remedy="a shell may have eaten its quotes: put the whole value in single quotes",
    )


def _check_words(flag: Flag, where: str) -> None:
    """Refuse names that are no flags, and values that a parser could not tell from flags or no process can be given."""
    if not _is_name(flag.name):
        raise FlagError(
            f"{where}: {flag.name!r} ({flag.source}) is no flag name", remedy="write --name, its value apart"
        )
    several = len(flag.values) > 1
    for value in flag.values:
        if value.isascii() and value[:1] != "-" and "\0" not in value:
            continue
        problem = _word_problem(value, several)
        if problem:
            raise FlagError(f"{where}: the value {value!r} of {flag.name} ({flag.source}) {problem}")


@functools.lru_cache(maxsize=4096)
def _is_name(name: str) -> bool:
    return _NAME.match(name) is not None


def _word_problem(value: str, several: bool) -> str:
    if value[:1] == "-" and (several or value == "--") and value != "-" and not NUMBER.match(value):
        return "would be read as a flag"
    if "\0" in value:
        return "holds a NUL byte, which no command line can carry"
    try:
        value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return "holds a lone surrogate, which no command line can carry"
    return ""
