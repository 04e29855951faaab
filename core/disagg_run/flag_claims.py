"""Who wants which value of a flag: claims, and trees of them where the value is a JSON object."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

import attrs

from disagg_run.errors import ConflictError
from disagg_run.sources import Source


def json_text(value: Any) -> str:
    """JSON as it is written into an argv: one line, no blanks, text as it is.

    A lone surrogate, which no argv can carry, makes the whole text ASCII with escapes. Raises TypeError for what is no
    JSON value.
    """
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=_plain)
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(value, separators=(",", ":"), default=_plain)
    return text


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{value!r} is no JSON value")


def words_text(name: str, values: Sequence[str]) -> str:
    """A flag's values as messages show them: quoted for a shell, a switch by its name."""
    return shlex.join(values) if values else name


def dotted_key(path: Iterable[str]) -> str:
    """A leaf's key path as text: ``a.b``; a part that is empty or holds a dot stands in quotes."""
    return ".".join(json.dumps(part, ensure_ascii=False) if "." in part or not part else part for part in path)


@attrs.define
class Claim:
    """One leaf of a JSON object, or a flag's words: who wants which value."""

    value: Any
    #: What tells two values apart: words with their negation, or JSON text (so that ``1`` is not ``true``).
    key: object
    #: The value as messages show it; a leaf as ``key.key=value``.
    text: str
    source: Source
    #: Plugins of the same layer that want another value: an error unless a later layer settles it.
    rivals: list[Claim] = attrs.field(factory=list)


@attrs.define
class Tree:
    """A JSON object, or one inside it."""

    #: Leaves and inner objects by key.
    children: dict[str, Claim | Tree]
    #: Of those who gave it or a part of it, the one of the highest layer.
    source: Source


Node = Claim | Tree


def object_tree(
    value: Mapping[str, Any], source: Source, leaf_sources: Mapping[str, Source], path: tuple[str, ...] = ()
) -> Tree:
    """The leaves of a JSON object as claims of ``source``, or of their own in ``leaf_sources``; lists are leaves."""
    tree = Tree({}, source)
    for name, item in value.items():
        here = (*path, str(name))
        child: Node
        if isinstance(item, Mapping):
            child = object_tree(item, source, leaf_sources, here)
        else:
            text, dotted = json_text(item), dotted_key(here)
            mine = leaf_sources.get(dotted, source) if leaf_sources else source
            child = Claim(item, text, f"{dotted}={text}", mine)
        tree.children[str(name)] = child
        tree.source = _higher(tree.source, child.source)
    return tree


def _higher(one: Source, other: Source) -> Source:
    return other if other.layer > one.layer else one


def claims(node: Node) -> Iterator[Claim]:
    """All leaves of a node."""
    if isinstance(node, Claim):
        yield node
        return
    for child in node.children.values():
        yield from claims(child)


def plain_value(node: Node) -> Any:
    """The value that a node stands for, without its sources."""
    if isinstance(node, Claim):
        return node.value
    return {key: plain_value(child) for key, child in node.children.items()}


def leaf_sources(tree: Tree, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Source]]:
    """Who set each leaf, by dotted key."""
    for key, node in tree.children.items():
        if isinstance(node, Claim):
            yield dotted_key((*path, key)), node.source
        else:
            yield from leaf_sources(node, (*path, key))


@attrs.define
class Contest:
    """The values that were given to one flag, in turn."""

    #: Flag as the winner wrote it, and the process: for messages.
    name: str
    where: str
    #: Who gave the winner; of an object, the last of the highest layer.
    source: Source
    node: Node | None = None
    replaced: list[Claim] = attrs.field(factory=list)

    def add(self, name: str, node: Node, source: Source) -> None:
        """Put one more value over those given so far."""
        self.node = node if self.node is None else self._over(self.node, node)
        if source.layer >= self.source.layer and (self.node is node or isinstance(self.node, Tree)):
            self.name, self.source = name, source

    def _over(self, old: Node, new: Node) -> Node:
        if isinstance(old, Tree) and isinstance(new, Tree):
            for key, node in new.children.items():
                old.children[key] = self._over(old.children[key], node) if key in old.children else node
            old.source = _higher(old.source, new.source)
            return old
        if isinstance(old, Claim) and isinstance(new, Claim):
            return self._settle(old, new)
        return self._exchange(old, new)

    def _settle(self, old: Claim, new: Claim) -> Claim:
        if new.source.layer < old.source.layer:
            self.replaced.insert(0, new)
            return old
        if new.source.layer == old.source.layer:
            if new.key == old.key:
                return old
            if new.source.plugin and old.source.plugin:
                old.rivals.append(new)
                return old
        self.replaced[:0] = [old, *old.rivals]
        return new

    def _exchange(self, old: Node, new: Node) -> Node:
        """An object against another value: one takes the whole place of the other."""
        if old.source.layer == new.source.layer and old.source.plugin and new.source.plugin:
            self._refuse([_whole(old), _whole(new)])
        winner, loser = (old, new) if new.source.layer < old.source.layer else (new, old)
        self.replaced[:0] = [loser] if isinstance(loser, Claim) else [*claims(loser)] or [_whole(loser)]
        return winner

    def finish(self) -> tuple[tuple[Source, str], ...]:
        """What was replaced, the nearest first; ConflictError where plugins of one layer still differ."""
        assert self.node is not None
        for claim in claims(self.node):
            if claim.rivals:
                self._refuse([claim, *claim.rivals])
        ranked = sorted(self.replaced, key=_layer, reverse=True)
        return tuple((claim.source, claim.text) for claim in ranked)

    def _refuse(self, rivals: list[Claim]) -> NoReturn:
        plugins = sorted({claim.source.plugin or "" for claim in rivals})
        said = " and ".join(f"{claim.text} ({claim.source})" for claim in rivals)
        yours = "a value of your own in the run file or on the command line"
        if len(plugins) == 1:
            raise ConflictError(
                f"{self.where}: plugin {plugins[0]!r} sets {self.name} to different values: {said}",
                remedy=f"this is the plugin's mistake; {yours} settles it",
            )
        named = " and ".join(repr(plugin) for plugin in plugins)
        raise ConflictError(
            f"{self.where}: plugins {named} set {self.name} to different values: {said}",
            remedy=f"leave one of them out, or settle it with {yours}",
        )


def _whole(node: Node) -> Claim:
    """An object as one claim, for messages."""
    if isinstance(node, Claim):
        return node
    text = json_text(plain_value(node))
    return Claim(None, text, text, node.source)


def _layer(claim: Claim) -> int:
    return claim.source.layer
