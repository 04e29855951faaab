"""Values that are a node's own: one that a user gives once for processes of several nodes is refused."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import attrs

from disagg_run.addresses import numeric_address
from disagg_run.catalogue import Catalogue
from disagg_run.errors import SpecError
from disagg_run.planning.commands import BuiltCommand
from disagg_run.planning.environment import MergedEnv
from disagg_run.planning.values import flag_value
from disagg_run.sources import Layer, Source
from disagg_run.spec.model import Node

#: What a program binds to be reached at every address of its node is right on all of them.
_ANY = ("0.0.0.0", "::", "[::]")


@attrs.frozen
class NodeValue:
    """A value of a process that is its node's own, as a user gave it."""

    #: ``TOY_HOST_IP``, ``--host``, ``--config/local_hostname``.
    what: str
    value: str
    source: Source


def given_node_values(built: BuiltCommand, env: MergedEnv, catalogue: Catalogue | None) -> Iterator[NodeValue]:
    """The node's own values that a user chose for a process; those of plugins are right for their node."""
    # Variables and leaves tell others an address: every address of a node is none to reach it at.
    for name in sorted(env.per_node & env.env.keys()):
        yield from _given(name, env.env[name], env.provenance[f"env/{name}"][0][0])
    for name, key in built.per_node:
        value, source = flag_value(built.flags, catalogue, name, key)
        if key or str(value) not in _ANY:
            yield from _given("/".join((name, *key)), value, source)


def _given(what: str, value: object, source: Source) -> Iterator[NodeValue]:
    if value not in (None, "") and source.layer >= Layer.CONTRACT:
        yield NodeValue(what, str(value), source)


def check_per_node(found: Iterable[tuple[int, str, NodeValue]], nodes: Sequence[Node]) -> None:
    """Refuse one value for several ``nodes``, and an address that other nodes are told and cannot reach.

    ``found``: rank and process of each. Raises SpecError naming value, source and processes.
    """
    first: dict[NodeValue, tuple[int, str]] = {}
    found = tuple(found)
    for rank, process, given in found:
        other_rank, other = first.setdefault(given, (rank, process))
        if other_rank != rank:
            raise SpecError(
                f"{given.what} is {given.value!r} ({given.source}) for {other} of rank {other_rank} and {process} of"
                f" rank {rank}, but it is a node's own",
                remedy="leave it out, for each node's is planned, or give it to each process by its name"
                f" (processes.{process} in a run file)",
            )
    for rank, process, given in found if len(nodes) > 1 else ():
        if _stays_inside(given.value) and not _stays_inside(nodes[rank].address):
            raise SpecError(
                f"{given.what} of {process} is {given.value!r} ({given.source}), where no other node reaches rank"
                f" {rank} ({nodes[rank].name or nodes[rank].address})",
                remedy="leave it out, for each node's is planned",
            )


def _stays_inside(address: str) -> bool:
    """Whether an address means the machine that uses it: loopback, or every address."""
    parsed = numeric_address(address)
    if parsed is None:
        return address == "localhost"
    return parsed.is_loopback or parsed.is_unspecified
