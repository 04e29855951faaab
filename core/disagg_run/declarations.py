"""Frozen records by which a plugin says what it is: its settings, model rows, flag catalogues and parity rules."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import attrs

from disagg_run.sources import Source
from disagg_run.spec.model import Role, as_tuple, frozen_map

if TYPE_CHECKING:
    from disagg_run.context import RankContext

#: Waiver under which an engine that takes any model takes one that its table does not have.
UNKNOWN_MODEL = "unknown-model"


@attrs.frozen(kw_only=True)
class Setting:
    """A value that a plugin lets users set: ``--set NAME=VALUE``, run file ``settings:``, or a contract variable."""

    #: Name, lower case with underscores: ``block_size``.
    name: str
    #: How text becomes a value; ``list`` = comma or blank separated text, ``json`` = any JSON value.
    type: Literal["int", "float", "bool", "str", "list", "json"]
    #: One line for ``disagg-run engines NAME``, with the unit.
    summary: str
    #: Contract variables that set it: variable -> role it is for, or None for both.
    env: Mapping[str, Role | None] = attrs.field(factory=dict, converter=frozen_map)
    #: Exact texts of a contract variable that count as not set, beside the empty text: job scripts export some
    #: variables with their usual value whatever the user wants.
    unset_values: tuple[str, ...] = attrs.field(default=(), converter=as_tuple)
    #: Allowed values; () = any of the type.
    choices: tuple[Any, ...] = attrs.field(default=(), converter=as_tuple)
    #: Least and greatest value of an ``int`` or ``float``, in its own unit; None = no bound.
    minimum: float | None = None
    maximum: float | None = None
    #: The servers' flag that it becomes, to which the bounds apply too where a user gives that by hand; "" = none.
    flag: str = ""


@attrs.frozen(kw_only=True)
class ModelRow:
    """One model of an engine's table, for a range of engine versions."""

    #: Model name, as users type it (and as the directory under model_dir is called).
    name: str
    #: Engine versions it is for, as a PEP 440 specifier set (``>=0.5.12``); "" = all.
    versions: str = ""
    #: Tensor-parallel size per role where the user gives none; absent = all GPUs of a node.
    tp: Mapping[Role, int] = attrs.field(factory=dict, converter=frozen_map)
    #: The engine's own typed row.
    body: Any = None
    #: Place in the table for each dotted path of the row ("" = the row): ``models.yaml:12``.
    places: Mapping[str, str] = attrs.field(factory=dict, converter=frozen_map, eq=False)

    def place(self, path: str = "") -> str:
        """Where a dotted path of the row stands, else where the row does; "" = not known."""
        return self.places.get(path) or self.places.get("", "")


@attrs.frozen(kw_only=True)
class CatalogueRef:
    """Where a catalogue of a program's flags lies; read only when a plan needs it."""

    #: ``server`` or ``router``.
    program: Literal["server", "router"]
    #: Version of the program whose parser it was taken from.
    version: str
    #: JSON file, package data of the plugin.
    file: Path


@attrs.frozen(kw_only=True)
class GoneFlag:
    """A flag that existed and does not any more."""

    name: str
    #: First version without it.
    since: str
    #: What to write instead; "" = nothing, it can be left out.
    successor: str = ""
    program: Literal["server", "router"] = "server"


@attrs.frozen(kw_only=True)
class SharedValue:
    """A setting that prefill and decode must have in common, compared once the commands are finished.

    Values are compared by what they mean: as the catalogue's kind of the flag reads them, JSON as data.
    """

    #: Name for ``--waive`` and messages: ``block-size``.
    name: str
    #: Flag (any of its names) or variable that carries it.
    flag: str = ""
    env: str = ""
    #: Function of the plugin that computes it for a role, where neither carries it, with who set what it follows from.
    computed: Callable[[RankContext, Role], tuple[Any, Source]] | None = None
    #: Key path inside a JSON-valued flag: ``("kv_connector_extra_config", "read_mode")``.
    key: tuple[str, ...] = attrs.field(default=(), converter=as_tuple)
    #: Function of the plugin that says what a value means to the engine, where its kind does not: both spellings of a
    #: number format are one. It gets the text or JSON value, the parser's default or None where nothing is given.
    meaning: Callable[[Any], Any] | None = None
    #: Why they must agree, in one clause; a function of the plugin where that depends on the plan.
    why: str | Callable[[RankContext], str] = ""
    #: Engine versions for which it holds.
    versions: str = ""


@attrs.frozen(kw_only=True)
class Combination:
    """Releases that were seen to serve a request together: engine, connector and router, each as a PEP 440 set."""

    #: Engine versions: ``>=0.20,<=0.32.0``.
    engine: str
    #: Names of connector plugins.
    connectors: tuple[str, ...] = attrs.field(converter=as_tuple)
    #: Router versions.
    router: str


def _as_loader(models: Iterable[ModelRow] | Callable[[], Iterable[ModelRow]]) -> Callable[[], Iterable[ModelRow]]:
    if callable(models):
        return models
    rows = tuple(models)
    return lambda: rows


@attrs.frozen(kw_only=True)
class Engine:
    """An engine plugin's answer to ``disagg_plugin``."""

    #: ``toy-disagg``; equal to the entry point's name.
    name: str
    #: One line for ``disagg-run engines``.
    summary: str
    #: Its model table: rows, or a function that reads them when they are first needed.
    models: Callable[[], Iterable[ModelRow]] = attrs.field(converter=_as_loader, eq=False)
    #: Versions it can plan for, as a PEP 440 specifier set.
    versions: str
    #: Version to plan for where nothing tells: that of the newest catalogue, as a rule.
    default_version: str
    #: Connector plugin used where the user names none.
    default_connector: str
    #: Roles it serves.
    roles: tuple[Role, ...] = ("prefill", "decode")
    #: Whether one worker may span nodes.
    multi_node_workers: bool = False
    #: Whether an unknown model may be planned with engine defaults alone, beside a table under --waive unknown-model.
    any_model: bool = False
    #: Further settings that users may give.
    settings: tuple[Setting, ...] = attrs.field(default=(), converter=as_tuple)
    #: Exact texts of contract variables of the core (``ROUTER_PORT``) that count as not set for this engine.
    contract_unset: Mapping[str, tuple[str, ...]] = attrs.field(factory=dict, converter=frozen_map)
    #: Contract variables that job scripts export whatever the engine, and that this one has no use for: name -> why.
    #: Others that are set, and that only plugins of other engines read, are remarked on.
    contract_unread: Mapping[str, str] = attrs.field(factory=dict, converter=frozen_map)
    #: Connectors by the name that the contract's ``KV_P2P_TRANSFER`` has for them.
    kv_transfers: Mapping[str, str] = attrs.field(factory=dict, converter=frozen_map)
    #: What prefill and decode must share.
    parity: tuple[SharedValue, ...] = attrs.field(default=(), converter=as_tuple)
    #: Checks of its own that ``--waive NAME`` lets through, beside parity: name -> what that lets through. The names of
    #: its preflight checks belong here too: they are known then whatever the plan.
    waivable: Mapping[str, str] = attrs.field(factory=dict, converter=frozen_map)
    #: Its servers' flag for the context length: the most tokens of one request, prompt and completion together. A value
    #: that is no number above 0 leaves it to the program. "" = nothing is known of the length.
    context_flag: str = ""
    #: Flag catalogues, by program and version.
    catalogues: tuple[CatalogueRef, ...] = attrs.field(default=(), converter=as_tuple)
    #: Program words whose parser ``disagg-run catalogue --python EXE`` takes; ``@python`` stands for EXE.
    parsers: Mapping[Literal["server", "router"], tuple[str, ...]] = attrs.field(factory=dict, converter=frozen_map)
    #: Flags known to be gone.
    gone_flags: tuple[GoneFlag, ...] = attrs.field(default=(), converter=as_tuple)
    #: What was seen to work together; any other combination is a warning. () = nothing is said, nothing is warned of.
    tested: tuple[Combination, ...] = attrs.field(default=(), converter=as_tuple)
    #: Distributions whose installed version is the engine's: ``("toy", "toy-cpu")``.
    distributions: tuple[str, ...] = attrs.field(default=(), converter=as_tuple)


@attrs.frozen(kw_only=True)
class Extension:
    """A connector, site or patch-set plugin's answer to ``disagg_plugin``."""

    #: Equal to the entry point's name.
    name: str
    #: One line for ``disagg-run engines``.
    summary: str
    #: ``connector``: one a plan; ``site``: all that fit; ``patches``: those asked for.
    kind: Literal["connector", "site", "patches"]
    #: Engines it is for; ``"all"`` = every engine.
    engines: tuple[str, ...] | Literal["all"] = "all"
    settings: tuple[Setting, ...] = attrs.field(default=(), converter=as_tuple)
    parity: tuple[SharedValue, ...] = attrs.field(default=(), converter=as_tuple)
    #: The engine's ``waivable``.
    waivable: Mapping[str, str] = attrs.field(factory=dict, converter=frozen_map)
    #: The engine's ``tested`` for this connector.
    tested: tuple[Combination, ...] = attrs.field(default=(), converter=as_tuple)
    #: Names under which its patches can be asked for, beside its own and each patch's id.
    patch_sets: tuple[str, ...] = attrs.field(default=(), converter=as_tuple)
