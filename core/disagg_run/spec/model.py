"""What is asked: ``LaunchSpec`` and its parts, as frozen records with a source for each value that was set."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Literal

import attrs

from disagg_run.sources import CORE_DEFAULT, Layer, Source

Role = Literal["prefill", "decode"]
ROLES: tuple[Role, Role] = ("prefill", "decode")

#: One for all: a large plan has a hundred thousand records without entries.
_EMPTY: Mapping[Any, Any] = MappingProxyType({})


def frozen_map(value: Mapping[Any, Any]) -> Mapping[Any, Any]:
    """A read-only copy of ``value``; attrs converter for mapping fields (mypy solves no type variables there)."""
    return MappingProxyType(dict(value)) if value else _EMPTY


def as_tuple(value: Iterable[Any]) -> tuple[Any, ...]:
    """A tuple of ``value``; attrs converter for sequence fields. Text is refused: it would fall into its letters."""
    if isinstance(value, str):
        raise TypeError(f"a sequence is expected, not the text {value!r}: write ({value!r},)")
    return tuple(value)


@attrs.frozen(kw_only=True)
class Node:
    """A host of the launch, in rank order."""

    #: Host name, for people and for Slurm; "" where only the address is known.
    name: str = ""
    #: Address that other ranks reach it by: IPv4, IPv6 (without brackets) or a host name.
    address: str


@attrs.frozen(kw_only=True)
class ArgText:
    """Extra engine flags as the user typed them, with their place."""

    #: Words after shell splitting, in order: ``("--seed", "7")``.
    words: tuple[str, ...] = attrs.field(converter=as_tuple)
    #: Where they were typed.
    source: Source = attrs.field(factory=lambda: Source(layer=Layer.PROGRAM))


@attrs.frozen(kw_only=True)
class RoleSpec:
    """One role: how many workers, how each is split over GPUs, and what is special to it."""

    #: Server instances of this role.
    workers: int = 1
    #: Tensor-parallel size, in GPUs of one worker (over all its nodes); None = model table, else a whole node.
    tp: int | None = None
    #: Pipeline-parallel size; a worker has tp * pp * dp GPUs.
    pp: int = 1
    #: Data-parallel replicas inside one worker, each with tp * pp GPUs of its own.
    dp: int = 1
    #: Data-parallel attention over the worker's tp GPUs (takes no further GPUs).
    dp_attention: bool = False
    #: Expert parallelism over the worker's GPUs.
    expert_parallel: bool = False
    #: Speculative tokens per step by multi-token prediction (MTP); 0 = off.
    mtp: int = 0
    #: Nodes given to this role; None = derived from the workers' GPUs.
    nodes: int | None = None
    #: Further flags for this role's servers.
    args: tuple[ArgText, ...] = attrs.field(default=(), converter=as_tuple)
    #: Variables for this role's servers.
    env: Mapping[str, str] = attrs.field(factory=dict, converter=frozen_map)
    #: Values of the engine's and connector's own settings, for this role only.
    settings: Mapping[str, Any] = attrs.field(factory=dict, converter=frozen_map)


@attrs.frozen(kw_only=True)
class RouterSpec:
    """The process that clients talk to."""

    #: ``plan`` = part of the plan, on rank 0; ``external`` = started by somebody else, who waits for our servers.
    mode: Literal["plan", "external"] = "plan"
    #: Version of the router whose flags are checked; None = that of the newest catalogue.
    version: str | None = None
    #: HTTP port; None = the engine plugin's default.
    port: int | None = None
    #: Routing policy; None = the engine plugin's default.
    policy: str | None = None
    #: Policy among prefill workers; None = the plugin's.
    prefill_policy: str | None = None
    #: Policy among decode workers; None = the plugin's.
    decode_policy: str | None = None
    #: Container image of the router where it is not the engine's.
    image: str | None = None
    #: Further flags for the router.
    args: tuple[ArgText, ...] = attrs.field(default=(), converter=as_tuple)
    #: Variables for the router.
    env: Mapping[str, str] = attrs.field(factory=dict, converter=frozen_map)


@attrs.frozen(kw_only=True)
class ProcessSpec:
    """What is asked of one process by name, the narrowest target."""

    args: tuple[ArgText, ...] = attrs.field(default=(), converter=as_tuple)
    env: Mapping[str, str] = attrs.field(factory=dict, converter=frozen_map)


@attrs.frozen(kw_only=True)
class BenchSpec:
    """The load that the launch is for: engines size batches and lengths by it, and no benchmark is run yet."""

    #: Prompt length in tokens.
    input_len: int = 8192
    #: Completion length in tokens.
    output_len: int = 1024
    #: Concurrent requests, one run each; () = not said.
    concurrency: tuple[int, ...] = attrs.field(default=(), converter=as_tuple)
    #: Requests per second, or ``inf``.
    request_rate: str = "inf"
    #: Lengths vary between ratio * length and length.
    range_ratio: float = 0.8
    #: Prompts per run = concurrency * this.
    prompts_multiplier: int = 10


@attrs.frozen(kw_only=True)
class LaunchSpec:
    """All that is asked of a launch; the planner's input beside node facts and plugins.

    A program may build it directly; its values then win over all others. ``sources`` maps a field's
    dotted path (``prefill.tp``, ``settings.block_size``, ``prefill.env.NAME``, ``processes.decode-0.env.NAME``) to who
    set it; fields that are absent there and differ from the default count as set by the program.
    """

    #: Engine plugin's name: ``toy-disagg``.
    engine: str
    #: Model name as in the engine's table.
    model: str
    #: Connector plugin; None = the engine's default.
    connector: str | None = None
    #: Where the model lies on the nodes; None = model_dir/model.
    model_path: str | None = None
    #: Directory of models on the nodes.
    model_dir: str = "/models"
    #: Name that clients use; None = as the engine does by itself.
    served_model_name: str | None = None
    #: Engine version for which to plan; None = from the image tag, the node facts, or the newest catalogue.
    engine_version: str | None = None
    #: Container image of the engine; None = on the bare host.
    image: str | None = None
    #: What containers see of the host beside what plugins mount, as ``/HOST:/INSIDE[:ro]``.
    mounts: tuple[str, ...] = attrs.field(default=(), converter=as_tuple)
    prefill: RoleSpec = attrs.field(factory=RoleSpec)
    decode: RoleSpec = attrs.field(factory=RoleSpec)
    router: RouterSpec = attrs.field(factory=RouterSpec)
    bench: BenchSpec = attrs.field(factory=BenchSpec)
    #: Hosts in rank order; () = unbound plan.
    nodes: tuple[Node, ...] = attrs.field(default=(), converter=as_tuple)
    #: GPUs of each node.
    gpus_per_node: int = 8
    #: Let workers share nodes even where they could have nodes of their own.
    pack: bool = False
    #: RDMA devices in rail order; () = detect from node facts.
    ib_devices: tuple[str, ...] = attrs.field(default=(), converter=as_tuple)
    #: Further flags for all servers.
    args: tuple[ArgText, ...] = attrs.field(default=(), converter=as_tuple)
    #: Variables for all servers.
    env: Mapping[str, str] = attrs.field(factory=dict, converter=frozen_map)
    #: Variables whose values are secret: passed by name from the agent's environment, never written down.
    secrets: tuple[str, ...] = attrs.field(default=(), converter=as_tuple)
    #: Values of the settings that engine, connector and site plugins declare.
    settings: Mapping[str, Any] = attrs.field(factory=dict, converter=frozen_map)
    #: Narrowest targets, by process name.
    processes: Mapping[str, ProcessSpec] = attrs.field(factory=dict, converter=frozen_map)
    #: Patches or patch sets asked for, by name.
    patches: tuple[str, ...] = attrs.field(default=(), converter=as_tuple)
    #: Fail where a source patch would change the engine.
    forbid_patches: bool = False
    #: Reference under which the engine may be changed by source patches, for the ledger of each node.
    patch_waiver: str = ""
    #: Checks that an expert lets through, by name; recorded in the plan.
    waive: tuple[str, ...] = attrs.field(default=(), converter=as_tuple)
    #: Start the engines' stand-ins instead of the engines.
    simulate: bool = False
    #: Options for the stand-ins, as their own flags: delays and faults; key = process name, role, or "all".
    simulation: Mapping[str, tuple[str, ...]] = attrs.field(factory=dict, converter=frozen_map)
    #: Who set what, by dotted path.
    sources: Mapping[str, Source] = attrs.field(factory=dict, converter=frozen_map, eq=False)
    #: Remarks from reading the layers (a run file that contradicts the environment, …), shown as plan warnings.
    notices: tuple[tuple[str, Source], ...] = attrs.field(default=(), converter=as_tuple, eq=False)

    def role(self, role: Role) -> RoleSpec:
        """The part of one role."""
        return self.prefill if role == "prefill" else self.decode

    def source(self, path: str) -> Source:
        """Who set the field at a dotted ``path``; the core default where nobody did."""
        found = self.sources.get(path)
        if found is not None:
            return found
        return CORE_DEFAULT if self._is_default(path) else Source(layer=Layer.PROGRAM, where="LaunchSpec")

    def _is_default(self, path: str) -> bool:
        value: Any = self
        default: Any = attrs.NOTHING
        rest = path
        while rest:
            if isinstance(value, Mapping):
                # A process name such as decode-0.1 holds a dot itself.
                return not any(rest == key or rest.startswith(f"{key}.") for key in value)
            if isinstance(value, tuple):  # one of several: a waiver, a mount
                return not value
            part, _, rest = rest.partition(".")
            field = getattr(attrs.fields(type(value)), part, None)
            if field is None:
                return True
            default = field.default.factory() if isinstance(field.default, attrs.Factory) else field.default  # type: ignore[arg-type]
            value = getattr(value, part)
        return bool(value == default)
