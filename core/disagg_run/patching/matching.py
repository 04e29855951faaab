"""Where an edit belongs in a source text: within a class or function, by text or by statements, exactly once."""

from __future__ import annotations

import ast
import functools
import re
import sys
import textwrap
import warnings
from collections.abc import Iterator
from functools import cached_property

import attrs

from disagg_run.records import Edit

_INDENT = re.compile(r"[ \t]*")
_RETURNS = "its lines end in CR LF, those of the patch in LF"
_Scope = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


class NoMatch(Exception):
    """The edit has no place in this text; the message says why, in one clause."""


class Altered(NoMatch):
    """The same, since the file is not as any release has it."""


@attrs.frozen
class Place:
    """A stretch of a text, as character offsets."""

    start: int
    end: int
    #: Indentation of the statements there; "" for a match by text.
    indent: str = ""

    def holds(self, other: Place) -> bool:
        """Whether ``other`` is a part of it, and not all."""
        inside = self.start <= other.start and other.end <= self.end
        return inside and (self.start, self.end) != (other.start, other.end)


@attrs.frozen
class Found:
    """Where an edit's anchor stands, or where its replacement stands already."""

    place: Place
    #: The edit is there already.
    present: bool


class SourceText:
    """A source text with its syntax tree."""

    def __init__(self, text: str) -> None:
        self.text = text

    @cached_property
    def tree(self) -> ast.Module:
        """The syntax tree; NoMatch where this Python cannot parse the text."""
        try:
            return parse(self.text)
        except (SyntaxError, ValueError) as error:
            version = f"{sys.version_info.major}.{sys.version_info.minor}"
            raise NoMatch(f"Python {version} cannot parse the file: {error}") from None

    @cached_property
    def _line_starts(self) -> list[int]:
        if "\r" in self.text:
            raise Altered(_RETURNS)
        starts = [0]
        for line in self.text.split("\n"):
            starts.append(starts[-1] + len(line) + 1)
        return starts

    @cached_property
    def _scopes(self) -> dict[str, list[_Scope]]:
        found: dict[str, list[_Scope]] = {}
        for qualified, node in _definitions(self.tree, ""):
            found.setdefault(qualified, []).append(node)
        return found

    def scope(self, name: str) -> tuple[ast.AST, Place]:
        """The class or function of that qualified name, which must be defined exactly once."""
        if not name:
            return (self.tree, Place(0, len(self.text)))
        found = self._scopes.get(name, [])
        if len(found) != 1:
            count = f"is defined {len(found)} times" if found else "is not there"
            raise NoMatch(f"{name} {count}")
        node = found[0]
        return node, self._span(node, node)

    def find(self, wanted: str, scope: str, by: str) -> list[Place]:
        """All places of ``wanted`` within a scope."""
        if by == "text":
            place = self.scope(scope)[1] if scope else Place(0, len(self.text))
            return _occurrences(self.text, wanted, place)
        return list(self._statements(wanted, scope))

    def _span(self, first: ast.stmt, last: ast.stmt) -> Place:
        """The whole lines from one statement to another."""
        line = min([first.lineno, *(each.lineno for each in getattr(first, "decorator_list", ()))])
        start = self._line_starts[line - 1]
        end = min(self._line_starts[last.end_lineno or last.lineno], len(self.text))
        indent = _INDENT.match(self.text, start)
        return Place(start, end, indent[0] if indent else "")

    def _statements(self, wanted: str, scope: str) -> Iterator[Place]:
        try:
            statements = _parse_statements(wanted)
        except SyntaxError as error:
            raise NoMatch(f"the edit itself is no Python: {error}") from None
        if not statements:
            return
        goal, kinds = [ast.dump(node) for node in statements], [type(node) for node in statements]
        for block in _blocks(self.scope(scope)[0]):
            for index in range(len(block) - len(goal) + 1):
                run = block[index : index + len(goal)]
                if [type(node) for node in run] == kinds and [ast.dump(node) for node in run] == goal:
                    place = self._span(run[0], run[-1])
                    if self._alone(run, place):
                        yield place

    def _alone(self, run: list[ast.stmt], place: Place) -> bool:
        """Whether nothing else stands on the statements' lines: no ``elif``, no second statement."""
        try:
            inside = _parse_statements(self.text[place.start : place.end])
        except SyntaxError:
            return False
        return [ast.dump(node) for node in inside] == [ast.dump(node) for node in run]


@functools.lru_cache(maxsize=16)
def source_text(text: str) -> SourceText:
    """A text with its syntax tree, kept for a while: patches look at one text again and again."""
    return SourceText(text)


def locate(source: SourceText, edit: Edit) -> Found:
    """Where ``edit`` belongs in ``source``, or stands already.

    Raises NoMatch where its anchor is not found exactly once.
    """
    places = source.find(edit.anchor, edit.scope, edit.by)
    if edit.replacement.strip():
        present = source.find(edit.replacement, edit.scope, edit.by)
        # An edit that takes something away leaves what stands within its anchor all along.
        if len(present) == 1 and not any(place.holds(present[0]) for place in places):
            return Found(present[0], True)
    if len(places) == 1:
        return Found(places[0], False)
    where = f"in {edit.scope}" if edit.scope else "in the file"
    first = edit.anchor.strip().split("\n")[0]
    if places:
        raise NoMatch(f"{first!r} … stands {len(places)} times {where}")
    if "\r\n" in source.text:
        raise Altered(_RETURNS)
    raise NoMatch(f"{first!r} … does not stand {where}")


def replacement_text(edit: Edit, place: Place) -> str:
    """What is written at ``place``."""
    if edit.by == "text":
        return edit.replacement
    text = textwrap.dedent(edit.replacement).strip("\n")
    return textwrap.indent(text, place.indent) + "\n" if text else ""


def parse(text: str) -> ast.Module:
    """The syntax tree, silently: a warning about an odd escape in somebody's source is not ours to show."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(text)


def syntax_problem(text: str) -> str:
    """What this Python finds wrong with a source text; "" = nothing."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            compile(text, "<patched>", "exec", dont_inherit=True)
        except (SyntaxError, ValueError) as error:
            return f"Python {sys.version_info.major}.{sys.version_info.minor} says {error}"
    return ""


def _parse_statements(text: str) -> list[ast.stmt]:
    return parse(textwrap.dedent(text)).body


def _definitions(node: ast.AST, prefix: str) -> Iterator[tuple[str, _Scope]]:
    for block in _own_blocks(node):
        for child in block:
            if isinstance(child, _Scope):
                yield prefix + child.name, child
                yield from _definitions(child, f"{prefix}{child.name}.")
            else:
                yield from _definitions(child, prefix)


def _blocks(node: ast.AST) -> Iterator[list[ast.stmt]]:
    for block in _own_blocks(node):
        yield block
        for child in block:
            yield from _blocks(child)


def _own_blocks(node: ast.AST) -> Iterator[list[ast.stmt]]:
    """The statement lists that a node holds itself, those of its handlers and cases too; expressions hold none."""
    for name in ("body", "orelse", "finalbody"):
        block = getattr(node, name, None)
        if isinstance(block, list) and block:
            yield block
    for part in (*getattr(node, "handlers", ()), *getattr(node, "cases", ())):
        yield part.body


def _occurrences(text: str, wanted: str, within: Place) -> list[Place]:
    places = []
    start = text.find(wanted, within.start, within.end) if wanted else -1
    while start >= 0:
        places.append(Place(start, start + len(wanted)))
        start = text.find(wanted, start + 1, within.end)
    return places
