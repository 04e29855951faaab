"""Node facts as a JSON document: ``{rank or node name: facts}``, the form in which ``plan --facts`` takes them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import attrs

from disagg_run.errors import SpecError
from disagg_run.facts import Nic, NodeFacts
from disagg_run.near_miss import did_you_mean
from disagg_run.spec.model import Node

#: How a value is read: from plain data, with the place for the error.
_Reader = Callable[[Any, str], Any]


def facts_to_json(facts: Mapping[str, NodeFacts], *, indent: int | None = 1) -> str:
    """The document for facts by node."""
    data = {name: _plain(each) for name, each in facts.items()}
    return json.dumps(data, ensure_ascii=False, indent=indent) + "\n"


def _plain(value: Any) -> Any:
    if attrs.has(type(value)):
        return {field.name: _plain(getattr(value, field.name)) for field in attrs.fields(type(value))}
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


def read_facts(text: str | bytes, name: str) -> dict[str, NodeFacts]:
    """The facts in a document; ``name`` stands for it in messages.

    Raises SpecError with the path of the value for what is no JSON object, an unknown key or one that stands twice, a
    value of a wrong type, or two NICs of one name.
    """
    try:
        data = json.loads(text, object_pairs_hook=lambda pairs: _each_once(pairs, name))
    except (ValueError, RecursionError) as error:
        raise SpecError(
            f"{name} is no JSON: {error}", remedy="give what `disagg-run facts --format json` prints"
        ) from None
    if not isinstance(data, dict):
        raise SpecError(f"{name} is no JSON object", remedy='give facts by rank or node name: {"0": {…}}')
    return {key: _record(NodeFacts, _FACTS, value, f"{name}: {key}") for key, value in data.items()}


def _each_once(pairs: list[tuple[str, Any]], name: str) -> dict[str, Any]:
    """A JSON object whose keys stand once each: of a node that stands twice, one would be taken silently."""
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise SpecError(f"{name}: the key {key!r} stands twice in one object", remedy="keep one")
        found[key] = value
    return found


def facts_by_rank(
    found: Mapping[str, NodeFacts], nodes: Sequence[Node]
) -> tuple[dict[int, NodeFacts], tuple[str, ...]]:
    """The facts of each rank whose node a key of ``found`` names, and the keys that name none.

    A key is a rank, or a node's name or address; facts of a host that is not named so belong to the node that has one
    of their addresses. Raises SpecError where two keys mean one rank.
    """
    by_rank: dict[int, NodeFacts] = {}
    keys: dict[int, str] = {}
    left = []
    for key, facts in found.items():
        rank = _rank(key, facts, nodes)
        if rank is None:
            left.append(key)
        elif rank in by_rank:
            raise SpecError(f"the facts of {keys[rank]!r} and {key!r} are both of rank {rank}", remedy="keep one")
        else:
            by_rank[rank], keys[rank] = facts, key
    return by_rank, tuple(left)


def _rank(key: str, facts: NodeFacts, nodes: Sequence[Node]) -> int | None:
    if key.isascii() and key.isdigit():
        return int(key) if int(key) < len(nodes) or not nodes else None
    own = {address for addresses in facts.addresses.values() for address in addresses}
    for wanted in ({key}, {key.partition(".")[0], facts.hostname} - {""}, own):
        for rank, node in enumerate(nodes):
            if wanted & {node.name, node.address}:
                return rank
    return None


# --- reading -----------------------------------------------------------------------------------------------------


def _record(kind: type[Any], readers: Mapping[str, _Reader], value: Any, place: str) -> Any:
    if not isinstance(value, dict):
        raise SpecError(f"{place}: {value!r} stands where an object is expected")
    for key in value:
        if key not in readers:
            remedy = did_you_mean(key, readers) or f"known keys are {', '.join(readers)}"
            raise SpecError(f"{place}: unknown key {key!r}", remedy=remedy)
    if "name" in readers and "name" not in value:
        raise SpecError(f"{place}: the key 'name' is missing")
    return kind(**{key: readers[key](item, f"{place}.{key}") for key, item in value.items()})


def _of_type(kind: type[Any], what: str) -> _Reader:
    def read(value: Any, place: str) -> Any:
        if type(value) is not kind:
            raise SpecError(f"{place}: {value!r} is no {what}")
        return value

    return read


def _one_of(*choices: Any) -> _Reader:
    def read(value: Any, place: str) -> Any:
        if value not in choices:
            raise SpecError(f"{place}: {value!r} is not one of {', '.join(map(repr, choices))}")
        return value

    return read


def _optional(inner: _Reader) -> _Reader:
    return lambda value, place: None if value is None else inner(value, place)


def _list(inner: _Reader) -> _Reader:
    def read(value: Any, place: str) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise SpecError(f"{place}: {value!r} is no list")
        return tuple(inner(item, f"{place}[{index}]") for index, item in enumerate(value))

    return read


def _map(inner: _Reader, key_of: Callable[[str], Any] = str) -> _Reader:
    def read(value: Any, place: str) -> dict[Any, Any]:
        if not isinstance(value, dict):
            raise SpecError(f"{place}: {value!r} is no object")
        try:
            return {key_of(key): inner(item, f"{place}.{key}") for key, item in value.items()}
        except ValueError as error:
            raise SpecError(f"{place}: {error}") from None

    return read


def _nics(value: Any, place: str) -> tuple[Nic, ...]:
    nics: tuple[Nic, ...] = _list(lambda item, at: _record(Nic, _NIC, item, at))(value, place)
    seen: dict[str, int] = {}
    for index, nic in enumerate(nics):
        if nic.name in seen:
            raise SpecError(f"{place}[{index}] and [{seen[nic.name]}] are both {nic.name!r}", remedy="keep one")
        seen[nic.name] = index
    return nics


def _port(value: Any, place: str) -> int:
    if type(value) is not int or not 0 < value < 65536:
        raise SpecError(f"{place}: {value!r} is no port")
    return value


def _amount(value: Any, place: str) -> int:
    if type(value) is not int or value < 0:
        raise SpecError(f"{place}: {value!r} is no whole number from 0")
    return value


def _range(value: Any, place: str) -> tuple[int, int]:
    ports: tuple[int, ...] = _list(_port)(value, place)
    if len(ports) != 2 or ports[0] > ports[1]:
        raise SpecError(f"{place}: {value!r} is no first and last port")
    return ports[0], ports[1]


_TEXT = _of_type(str, "text")

_NIC: Mapping[str, _Reader] = {
    "name": _TEXT,
    "driver": _TEXT,
    "state": _TEXT,
    "netdev": _TEXT,
    "addresses": _list(_TEXT),
    "gids": _map(_TEXT, int),
    "gpus": _list(_amount),
    "network": _TEXT,
}

_FACTS: Mapping[str, _Reader] = {
    "hostname": _TEXT,
    "addresses": _map(_list(_TEXT)),
    "default_interface": _TEXT,
    "gpus": _optional(_amount),
    "gpu_vendor": _one_of("amd", "nvidia", ""),
    "nics": _nics,
    "ephemeral_ports": _range,
    "listening_ports": _list(_port),
    "memory_bytes": _optional(_amount),
    "container_tool": _TEXT,
    "engine_version": _TEXT,
    "links": _map(_TEXT),
}


def unmatched(keys: Iterable[str], name: str) -> str:
    """A remark for the keys of a document that fit no node of the launch."""
    return f"{name} has facts of {', '.join(sorted(keys))}, which is no node of this launch"
