"""A point of a master-config entry: what it asks for, and what of it the launch's plugins must interpret."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import attrs

from disagg_run.declarations import Engine, Setting
from disagg_run.near_miss import did_you_mean
from disagg_run.sources import Source
from disagg_run.spec.contract_unread import why_unread
from disagg_run.spec.environment import KV_TRANSFER, UNSET, contract, contract_connector, contract_settings
from disagg_run.spec.layers import AnyAssignment, Assignment, Place, SettingAssignment, assign
from disagg_run.spec.model import ROLES, Role, as_tuple, frozen_map
from disagg_run.spec.options import OPTIONS, by_dotted
from disagg_run.topology_needs import count

_NODES = tuple(f"{role.upper()}_NODES" for role in ROLES)


@attrs.frozen(kw_only=True)
class RoleShape:
    """How many servers of a role, and how large."""

    role: Role
    workers: int
    #: Nodes of the role.
    nodes: int
    #: GPUs of a node that the role uses, as the file says.
    tp: int
    #: GPUs of one worker over all its nodes.
    gpus: int
    ep: bool
    dp_attention: bool
    #: Where the nodes are counted; None = nowhere, each worker has one.
    counted: Place | None
    #: Where tp stands.
    place: Place

    def __str__(self) -> str:
        extras = ("+EP" if self.ep else "") + ("+DPA" if self.dp_attention else "")
        return f"{self.workers}x TP{self.gpus}{extras}"

    def check_node(self, gpus_per_node: int) -> None:
        """Refuse a tp that is no share of a node of ``gpus_per_node`` GPUs, with SpecError."""
        if self.tp > gpus_per_node:
            raise self.place.error(
                f"{self.tp} is more than the {gpus_per_node} GPUs of a node",
                remedy=f"tp is of a node: for a worker over several nodes add {self.role.upper()}_NODES=N",
            )
        if self.nodes > self.workers and self.tp != gpus_per_node:
            raise self.place.error(
                f"{self.tp} of each of {self.nodes} nodes for {count(self.workers, 'worker')}",
                remedy=f"a worker over several nodes has all {gpus_per_node} GPUs of each",
            )


@attrs.frozen(kw_only=True)
class Point:
    """One launch of an entry."""

    #: Name of the entry.
    entry: str
    #: Index within the entry, as ``--point`` takes it.
    number: int
    #: ``fixed-seq-len[0].search-space[1]``.
    scenario: str
    #: Tokens of prompt and completion.
    input_len: int
    output_len: int
    concurrency: tuple[int, ...] = attrs.field(converter=as_tuple)
    #: ``none`` or ``mtp``.
    speculation: str
    shapes: Mapping[Role, RoleShape] = attrs.field(converter=frozen_map)
    #: What needs no plugin to be understood.
    assignments: tuple[Assignment, ...] = attrs.field(converter=as_tuple, repr=False)
    #: Contract variables, each with its text and place.
    variables: Mapping[str, tuple[str, Place]] = attrs.field(converter=frozen_map, repr=False)
    #: The same for what the engine has names for: ``model``, and where they are said, ``router``, ``kv-p2p-transfer``.
    named: Mapping[str, tuple[str, Place]] = attrs.field(converter=frozen_map, repr=False)

    def __str__(self) -> str:
        load = f"{self.input_len}/{self.output_len} at {'x'.join(map(str, self.concurrency))}"
        return f"{self.number} = {load}, prefill {self.shown('prefill')}, decode {self.shown('decode')}"

    def shown(self, role: Role) -> str:
        """A role in short: ``2x TP8+DPA+MTP``."""
        return f"{self.shapes[role]}{'+MTP' if self.speculation == 'mtp' else ''}"

    def of_engine(self, engine: Engine, models: Iterable[str], gpus_per_node: int) -> Iterator[AnyAssignment]:
        """What the engine must interpret: model, connector, and variables of the core's options.

        ``models``: names of the engine's table. Raises SpecError for what the engine does not know.
        """
        for role in ROLES:
            self.shapes[role].check_node(gpus_per_node)
        model, place = self.named["model"]
        yield from assign(by_dotted()["model"], model_name(model, frozenset(models)), place)
        if "kv-p2p-transfer" in self.named:
            transfer, place = self.named["kv-p2p-transfer"]
            if not engine.kv_transfers:
                raise place.error(
                    f"{engine.name} has no names for KV transfers", remedy="take the key out, and name a --connector"
                )
            yield from contract_connector({KV_TRANSFER: transfer}, engine, lambda _: place)
        if "router" in self.named:
            self._check_router(engine)
        own = {each.path: each for each in self.assignments}
        for given in contract(self._texts(), engine.contract_unset, self._place):
            if given.path in own:
                there = own[given.path].place
                raise given.place.error(
                    f"it sets {'.'.join(given.path)}, which the entry says itself",
                    remedy=f"see {there.text}",
                )
            yield given

    def of_settings(self, settings: Mapping[str, Setting], engine: Engine, owners: str) -> Iterator[SettingAssignment]:
        """What the variables say of the plugins' settings; SpecError for one that nobody reads, naming the nearest."""
        core = {name for option in OPTIONS for name in option.contract} | {KV_TRANSFER, *engine.contract_unread}
        plugins = {name for setting in settings.values() for name in setting.env}
        for name, (_, place) in self.variables.items():
            if name not in core | plugins and why_unread(name):
                raise place.error("disagg-run does not read this variable", remedy=f"it is {why_unread(name)}")
            if name not in core | plugins:
                meant = did_you_mean(name, sorted({*core, *plugins, *_NODES}))
                raise place.error(
                    f"neither disagg-run nor {owners} reads this variable",
                    remedy=meant or "docs/environment.md lists those that are read",
                )
        yield from contract_settings(self._texts(), settings, self._place)

    def unread(self, engine: Engine) -> Iterator[tuple[str, Source]]:
        """A remark for each variable of which the engine is known to need nothing."""
        for name, (text, place) in self.variables.items():
            if name in engine.contract_unread and text not in UNSET:
                why = engine.contract_unread[name]
                yield f"{place.text} says {text!r}, but {engine.name} does not read it: {why}", place.source

    def _texts(self) -> dict[str, str]:
        return {name: text for name, (text, _) in self.variables.items()}

    def _place(self, name: str) -> Place:
        return self.variables[name][1]

    def _check_router(self, engine: Engine) -> None:
        """Refuse a router that is not the one whose flags the engine plugin knows."""
        from disagg_run.catalogue import pick_catalogue

        name, place = self.named["router"]
        picked = pick_catalogue(engine.catalogues, "router", "")
        if picked is None or name in picked[0].command.replace("_", "-").replace(".", " ").split():
            return
        raise place.error(
            f"{engine.name} starts another router than {name!r}: {picked[0].command!r}",
            remedy="correct the name, or start yours yourself and plan with --router external",
        )


def model_name(text: str, known: frozenset[str]) -> str:
    """The table's name for a model of a hub: ``maker/Name`` is ``maker/Name``, ``Name`` or ``maker-Name`` there."""
    last = text.rpartition("/")[2]
    for name in (text, last, text.replace("/", "-")):
        if name in known:
            return name
    return last
