"""The plan document: what one launch does on every rank, as data."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Literal

import attrs

from disagg_run.errors import PlanError
from disagg_run.planning.provenance import SCHEMA, SourceTable
from disagg_run.port_units import port_run
from disagg_run.records import ContainerNeeds, Patch, Preflight, ProcessKind
from disagg_run.spec.model import Node, Role, as_tuple, frozen_map

_OMIT = {"omit_empty": True}


@attrs.frozen(kw_only=True)
class PluginUsed:
    """A plugin that contributed to the plan."""

    #: As its entry point calls it.
    name: str
    #: Distribution that brought it; "" for a plugin registered by a program.
    distribution: str
    #: Version of the distribution; "" = none.
    version: str


@attrs.frozen(kw_only=True)
class PlannedModel:
    """The model that is served."""

    #: As in the engine's table.
    name: str
    #: Path on the nodes' hosts.
    path: str
    #: Name that clients must use in requests.
    served_name: str


@attrs.frozen(kw_only=True)
class Remark:
    """A warning, or a check that was waived, with who caused it."""

    #: One sentence; of a check, what would have been refused without the waiver.
    message: str
    #: Who caused it: option, variable or place in a file; of a check, its name. "" = nobody in particular.
    source: str = ""


@attrs.frozen(kw_only=True)
class Ready:
    """One proof of readiness."""

    #: What proves it: a port that is open, an answer over HTTP, a generated token, a printed text, an end with 0.
    kind: Literal["tcp", "http", "generation", "output", "exit"]
    #: URL, ``host:port``, the text that is printed for ``output``, or "" for ``exit``.
    target: str
    #: Seconds from the process's start.
    timeout_s: float
    #: What makes the answer ours, and who must own the socket: ``{"listener": "http", "served_model": …, "url": …}``.
    identity: Mapping[str, str] = attrs.field(factory=dict, converter=frozen_map)
    #: Status with which a process that was ready says that it is broken for good; 0 = it has none.
    broken_status: int = attrs.field(default=0, metadata=_OMIT)

    def __str__(self) -> str:
        proof = {"exit": "ends with 0", "output": f"prints {self.target!r}"}.get(
            self.kind, f"{self.kind} {self.target}"
        )
        return f"{proof} within {self.timeout_s:g} s"


@attrs.frozen(kw_only=True)
class After:
    """A process that must have come so far before this one starts; a setup process is ready when it ended with 0."""

    #: Its name.
    process: str
    #: How far it must have come.
    until: Literal["started", "listening", "ready"]


@attrs.frozen(kw_only=True)
class PlannedProcess:
    """One process of a rank."""

    #: Unique in the plan: ``prefill-0``, a follower of it ``prefill-0.1``.
    name: str
    #: ``setup``, ``service``, ``server``, ``router`` or ``workload``.
    kind: ProcessKind
    #: ``prefill`` or ``decode`` of a server, else null.
    role: Role | None = None
    #: Index of its worker within the role, from 0.
    worker: int = 0
    #: Whether it is its worker's head, which serves HTTP; a follower is not.
    head: bool = True
    #: The command that is asked for.
    argv: tuple[str, ...] = attrs.field(converter=as_tuple)
    #: What is really started instead (simulation); () = argv. A first word ``@python`` is the agent's interpreter.
    exec: tuple[str, ...] = attrs.field(default=(), converter=as_tuple, metadata=_OMIT)
    #: Variables that we set; the rest is inherited from the agent.
    env: Mapping[str, str] = attrs.field(factory=dict, converter=frozen_map)
    #: Elements put before what the node has, joined by ":".
    env_prepend: Mapping[str, tuple[str, ...]] = attrs.field(factory=dict, converter=frozen_map, metadata=_OMIT)
    #: Elements put behind what the node has, joined by ":".
    env_append: Mapping[str, tuple[str, ...]] = attrs.field(factory=dict, converter=frozen_map, metadata=_OMIT)
    #: Variables that must not reach the process.
    unset: tuple[str, ...] = attrs.field(default=(), converter=as_tuple, metadata=_OMIT)
    #: Variables that must be in the agent's environment and are passed on by name (secrets).
    secrets: tuple[str, ...] = attrs.field(default=(), converter=as_tuple, metadata=_OMIT)
    #: GPUs of the node that it uses, by index.
    gpus: tuple[int, ...] = attrs.field(default=(), converter=as_tuple)
    #: First port of each listener.
    ports: Mapping[str, int] = attrs.field(factory=dict, converter=frozen_map)
    #: How many consecutive ports a listener has, where more than one.
    port_counts: Mapping[str, int] = attrs.field(factory=dict, converter=frozen_map, metadata=_OMIT)
    #: All of these together prove that it is ready.
    ready: tuple[Ready, ...] = attrs.field(default=(), converter=as_tuple)
    #: What it waits for.
    after: tuple[After, ...] = attrs.field(default=(), converter=as_tuple)

    def port_text(self, listener: str) -> str:
        """The ports of a listener, as people write them: ``8000``, ``6301-6308``."""
        first, count = self.ports[listener], self.port_counts.get(listener, 1)
        return port_run(first, first + count - 1)


@attrs.frozen(kw_only=True)
class PlannedContainer:
    """The container of a group."""

    #: Reference or file, as the container tool takes it.
    image: str
    #: Mounts, devices and limits.
    needs: ContainerNeeds = attrs.field(factory=ContainerNeeds)


@attrs.frozen(kw_only=True)
class Group:
    """What shares one container, or the bare host."""

    #: Null = the bare host.
    container: PlannedContainer | None = None
    #: Source patches of the engine, in the order in which they are applied.
    patches: tuple[Patch, ...] = attrs.field(default=(), converter=as_tuple)
    #: Fail where the installed engine carries source patches.
    forbid_patches: bool = attrs.field(default=False, metadata=_OMIT)
    #: What the agent checks before anything starts.
    preflight: tuple[Preflight, ...] = attrs.field(default=(), converter=as_tuple)
    #: In the order setup, service, server, router, workload.
    processes: tuple[PlannedProcess, ...] = attrs.field(converter=as_tuple)

    def checks_text(self) -> str:
        """The names of its checks; several of one name with what each looks at: ``model, driver (/dev/a, /dev/b)``."""
        targets: dict[str, list[str]] = {}
        for check in self.preflight:
            targets.setdefault(check.name, []).append(check.target or " ".join(check.argv))
        return ", ".join(f"{name} ({', '.join(them)})" if len(them) > 1 else name for name, them in targets.items())


@attrs.frozen(kw_only=True)
class RankPlan:
    """All that one node does."""

    #: From 0, which is where the router runs.
    rank: int
    #: Its node; a made-up one in a plan that is not bound.
    node: Node
    #: One for each container, and one for the bare host.
    groups: tuple[Group, ...] = attrs.field(converter=as_tuple)

    def processes(self) -> tuple[PlannedProcess, ...]:
        """The rank's processes, over all groups."""
        return tuple(process for group in self.groups for process in group.processes)


@attrs.frozen(kw_only=True)
class LaunchPlan:
    """The whole launch. ``to_json()`` gives the document; ``LaunchPlan.from_json()`` reads it back."""

    #: Name of the engine plugin.
    engine: str
    #: Version that is planned for.
    engine_version: str
    #: Name of the plugin that transfers KV.
    connector: str
    #: What is served.
    model: PlannedModel
    #: Whether ranks have real nodes; an unbound plan cannot be run, except simulated.
    bound: bool
    #: Whether the stand-ins are started.
    simulated: bool = False
    #: By name.
    plugins: tuple[PluginUsed, ...] = attrs.field(default=(), converter=as_tuple)
    #: What may be wrong, or is not as a reader may think.
    warnings: tuple[Remark, ...] = attrs.field(default=(), converter=as_tuple)
    #: What was let through.
    waived: tuple[Remark, ...] = attrs.field(default=(), converter=as_tuple)
    #: One a node, by rank.
    ranks: tuple[RankPlan, ...] = attrs.field(converter=as_tuple)
    #: Not part of the document or of equality; absent after ``from_json``.
    sources: SourceTable | None = attrs.field(default=None, eq=False, repr=False)

    @property
    def digest(self) -> str:
        """``sha256:…`` of the canonical document without the digest itself."""
        return _digest(self._body())

    def _body(self) -> dict[str, Any]:
        body = to_data(attrs.evolve(self, sources=None))
        del body["sources"]
        return {"schema": SCHEMA, **body}

    def to_dict(self) -> dict[str, Any]:
        """The document as plain data, digest included."""
        body = self._body()
        return {"schema": SCHEMA, "digest": _digest(body), **{k: v for k, v in body.items() if k != "schema"}}

    def to_json(self, *, indent: int | None = None) -> str:
        """The document as text; the same plan gives the same text, byte for byte."""
        separators = None if indent else (",", ":")
        return json.dumps(self.to_dict(), ensure_ascii=False, indent=indent, separators=separators) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes) -> LaunchPlan:
        """Read a plan document.

        Raises SpecError where it is no plan, of another schema, has unknown or missing keys, or its digest is wrong.
        """
        from disagg_run.planning.reading import read_plan

        return read_plan(cls, text)

    def process(self, name: str) -> PlannedProcess:
        """The process of that name; PlanError where there is none."""
        for rank in self.ranks:
            for process in rank.processes():
                if process.name == name:
                    return process
        raise PlanError(f"the plan has no process {name!r}", remedy=f"it has {', '.join(self.process_names())}")

    def process_names(self) -> tuple[str, ...]:
        """The names of all processes, by rank."""
        return tuple(process.name for rank in self.ranks for process in rank.processes())


def to_data(value: Any) -> Any:
    """Plain JSON data of a record: dicts, lists, text and numbers; empty optional fields are left out."""
    if isinstance(value, str) or value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, Mapping):
        return {key: to_data(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [to_data(item) for item in value]
    data = {}
    for field in attrs.fields(type(value)):
        item = getattr(value, field.name)
        if not item and field.metadata.get("omit_empty"):
            continue
        data[field.name] = to_data(item)
    return data


def _digest(body: dict[str, Any]) -> str:
    canonical = json.dumps(body, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    return "sha256:" + hashlib.sha256(canonical.encode("utf-8", "surrogatepass")).hexdigest()
