"""Frozen records that hooks return, those of ``patch_records.py`` among them; what a plugin says of itself is in
``declarations.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import attrs

from disagg_run.patch_records import Edit as Edit
from disagg_run.patch_records import FileDigest as FileDigest
from disagg_run.patch_records import Patch as Patch
from disagg_run.sources import Source
from disagg_run.spec.model import as_tuple, frozen_map

ProcessKind = Literal["setup", "service", "server", "router", "workload"]

# --- flags and variables -----------------------------------------------------------------------------------------


#: ``option`` of what follows from the plan as such, so that no option changes it: how a server is reached.
FIXED = "plan"


@attrs.frozen
class Flag:
    """One flag of a command: ``Flag("--tp-size", ("8",))``; see ``flag()`` for the short way to write it."""

    #: The flag as written, with its dashes: ``--tp-size``, ``-tp``.
    name: str
    #: Its values as argv words; () = a switch. For a repeatable flag each occurrence is a Flag of its own.
    values: tuple[str, ...] = attrs.field(default=(), converter=as_tuple)
    #: A JSON object value instead of ``values``: merged by key with other plugins', written once.
    json: Mapping[str, Any] | None = attrs.field(default=None, kw_only=True)
    #: Who set it; None = the plugin that returns it, at its own layer.
    source: Source | None = attrs.field(default=None, kw_only=True)
    #: A source for leaves of ``json`` that have another one, by dotted key.
    leaf_sources: Mapping[str, Source] = attrs.field(factory=dict, converter=frozen_map, kw_only=True)
    #: What the reader of a plan should know beside it, for the plan's warnings; "" = nothing.
    remark: str = attrs.field(default="", kw_only=True)
    #: Option of the plan from which it follows together with GPUs, placement, probes or parity (``prefill.tp``,
    #: ``settings.block_size``, by its dotted path in ``LaunchSpec``): another value by hand is refused. "" = any may
    #: be given.
    option: str = attrs.field(default="", kw_only=True)
    #: The same for leaves of ``json``, given here or not, by dotted key: the option from which each follows.
    leaf_options: Mapping[str, str] = attrs.field(factory=dict, converter=frozen_map, kw_only=True)
    #: With ``option``: further values by hand that the plan is right for, such as the node's own address where the plan
    #: binds every one.
    agreeing: tuple[str, ...] = attrs.field(default=(), converter=as_tuple, kw_only=True)
    #: The same for leaves of ``json`` that are in ``leaf_options``, by dotted key.
    leaf_agreeing: Mapping[str, tuple[str, ...]] = attrs.field(factory=dict, converter=frozen_map, kw_only=True)
    #: With ``option``: the only values by hand that are refused, where any other may be given, such as names of
    #: launchers that would place the processes anew.
    contrary: tuple[str, ...] = attrs.field(default=(), converter=as_tuple, kw_only=True)
    #: Whether the program does so without being told: left out of the command, the flag only says what one by hand must
    #: agree with. A switch that is implied is off.
    implied: bool = attrs.field(default=False, kw_only=True)
    #: Whether name and value are one word: many parsers take ``--x false`` for ``--x`` and a further word.
    joined: bool = attrs.field(default=False, kw_only=True)
    #: What of it is the node's own, such as its address: leaves of ``json`` by dotted key, given here or not; "" = the
    #: value itself. One value that a user gives for processes of several nodes is refused.
    per_node: tuple[str, ...] = attrs.field(default=(), converter=as_tuple, kw_only=True)


def flag(name: str, *values: object, source: Source | None = None, option: str = "", implied: bool = False) -> Flag:
    """A ``Flag`` with its values turned to text.

    A single mapping is a JSON value. Booleans are not values: leave the flag out, or name its negation.
    """
    if len(values) == 1 and isinstance(values[0], Mapping):
        return Flag(name, json=values[0], source=source, option=option, implied=implied)
    return Flag(name, tuple(str(value) for value in values), source=source, option=option, implied=implied)


@attrs.frozen(kw_only=True)
class Command:
    """How one process is started: program words, then flags."""

    #: Program and its positional words: ``("python3", "-m", "toy.server")``.
    program: tuple[str, ...] = attrs.field(converter=as_tuple)
    flags: tuple[Flag, ...] = attrs.field(default=(), converter=as_tuple)
    #: Image of the container where it is not the engine's (a router with its own image).
    image: str | None = None


@attrs.frozen
class EnvSetting:
    """One change to a process's environment."""

    #: Variable name.
    name: str
    #: Its value; a path element for prepend and append; "" for unset and secret.
    value: str = ""
    #: ``set`` and ``unset`` replace; ``prepend``/``append`` put one element before/after what the node has, joined by
    #: ``:``; ``secret`` = passed on from the agent's environment by name, and required there.
    op: Literal["set", "unset", "prepend", "append", "secret"] = attrs.field(default="set", kw_only=True)
    #: Whether the value is the node's own, such as its address: one that a user gives for several nodes is refused.
    per_node: bool = attrs.field(default=False, kw_only=True)
    #: As ``Flag.option``: where it follows from the plan, another value by hand is refused. "" = any may be given.
    option: str = attrs.field(default="", kw_only=True)
    #: As ``Flag.implied``: left out of the environment, it only says what one by hand must agree with; an ``unset``
    #: that is implied is a variable that nobody may set.
    implied: bool = attrs.field(default=False, kw_only=True)
    #: As ``Flag.agreeing``: further values by hand that the plan is right for.
    agreeing: tuple[str, ...] = attrs.field(default=(), converter=as_tuple, kw_only=True)
    #: As ``Flag.contrary``: the only values by hand that are refused.
    contrary: tuple[str, ...] = attrs.field(default=(), converter=as_tuple, kw_only=True)
    #: Who set it; None = the plugin that returns it, at its own layer.
    source: Source | None = attrs.field(default=None, kw_only=True)


# --- processes and readiness -------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class Probe:
    """What proves that a process is ready, asked of the listener it stands in."""

    #: ``tcp``: accepts; ``http``: GET path answers 200; ``generation``: one completion for the served model comes back;
    #: ``output``: the process prints ``text``; ``exit``: the process ended with 0 (setup).
    kind: Literal["tcp", "http", "generation", "output", "exit"]
    #: Path for http and generation.
    path: str = "/health"
    #: Seconds from the process's start until waiting is given up.
    timeout_s: float = 1800.0
    #: Name that the answer of ``identity_path`` must list among its models; None = not asked.
    served_model: str | None = None
    #: Path asked for the identity.
    identity_path: str = "/v1/models"
    #: For ``output``: what the process prints, on one line; ``{http:NAME}`` stands for host:port of the head NAME's
    #: HTTP.
    text: str = ""
    #: For ``http``: the status with which a server that was ready says it is broken for good, which ends the run. It is
    #: asked as soon as one of its processes is gone. 0 = it has none, or also answers it when it is only busy.
    broken_status: int = 0


@attrs.frozen(kw_only=True)
class Listener:
    """A port, or a run of ports, that a process opens."""

    #: Name unique within the process, key of ``ports``: ``http``, ``handshake``.
    name: str
    #: Port that is taken where nothing clashes. With ``relative_to`` it is ignored.
    default_port: int = 0
    #: How many consecutive ports.
    count: int = 1
    #: Whether the user fixed the port: a clash is then an error instead of a move.
    pinned: bool = False
    #: Name of the listener of the same process from which the engine derives this one, with ``offset``.
    relative_to: str = ""
    offset: int = 0
    #: The same number on every node of the worker (head's and followers' ports are one).
    worker_wide: bool = False
    #: What proves the process ready; a process may have several.
    probe: Probe | None = None
    #: Proofs of the same listener that count after ``probe``: a generation through a router.
    further_probes: tuple[Probe, ...] = attrs.field(default=(), converter=as_tuple)
    #: Flag that tells the program this port, so that one set by hand beside the plan is refused; "" = none does.
    flag: str = ""
    #: Key path to the port inside a JSON-valued ``flag``.
    flag_key: tuple[str, ...] = attrs.field(default=(), converter=as_tuple)
    #: Variable that tells the program this port, held in the same way; "" = none does.
    variable: str = ""
    #: By what a user fixes the port: a setting's name, or an option of the launch by its dotted path; "" = nothing.
    option: str = ""
    #: Who chose the port; None = the plugin that returns it.
    source: Source | None = None


@attrs.frozen(kw_only=True)
class ServiceProcess:
    """A service (long-lived) or setup (ends with 0 before servers start) process of a rank."""

    #: Unique in the plan: ``store``; a setup's name gets ``@RANK`` by the core where several ranks have it.
    name: str
    kind: Literal["setup", "service"]
    command: Command
    env: tuple[EnvSetting, ...] = attrs.field(default=(), converter=as_tuple)
    #: Ports it opens and what proves it ready. In ``command`` write ``{port:NAME}`` where a listener's port goes.
    listeners: tuple[Listener, ...] = attrs.field(default=(), converter=as_tuple)
    #: Servers that wait for it: those of its own rank (``rank``) or all (``launch``).
    scope: Literal["rank", "launch"] = "launch"


# --- containers, checks ------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class Mount:
    """A bind mount."""

    source: str
    target: str
    read_only: bool = True
    #: Leave it out where ``source`` does not exist on the node.
    optional: bool = False


@attrs.frozen(kw_only=True)
class ContainerNeeds:
    """What a container of this rank needs, for the node's facts; contributions are united."""

    mounts: tuple[Mount, ...] = attrs.field(default=(), converter=as_tuple)
    #: Device paths; those that a node lacks are left out there.
    devices: tuple[str, ...] = attrs.field(default=(), converter=as_tuple)
    groups: tuple[str, ...] = attrs.field(default=(), converter=as_tuple)
    capabilities: tuple[str, ...] = attrs.field(default=(), converter=as_tuple)
    #: Limits by name: ``{"memlock": "-1", "nofile": "1048576"}``.
    ulimits: Mapping[str, str] = attrs.field(factory=dict, converter=frozen_map)
    #: Shared memory in bytes; 0 = the tool's default.
    shm_bytes: int = 0
    ipc_host: bool = True
    network_host: bool = True


@attrs.frozen(kw_only=True)
class Preflight:
    """A check that the node's agent makes before anything starts."""

    #: Name for messages and ``--waive``.
    name: str
    kind: Literal["path_exists", "port_free", "memory_free", "device_present", "output_matches", "variable_set"]
    #: Path, port, bytes, device, or variable name.
    target: str = ""
    #: Command for ``output_matches``.
    argv: tuple[str, ...] = attrs.field(default=(), converter=as_tuple)
    #: Regular expression that the output must match.
    pattern: str = ""
    #: What to do when it fails.
    remedy: str = ""
    #: Whether failing stops the run; otherwise it warns.
    required: bool = True


@attrs.frozen(kw_only=True)
class Simulation:
    """How a process is started under simulation, in place of its argv.

    A stand-in is started as ``program``, the user's simulation options, ``--``, then the whole argv of the plan. A real
    program (``stand_in=False``: a router that is installed here) takes the place of the command's program words.
    """

    #: Program words; ``@python`` as first word stands for the interpreter that runs the agent.
    program: tuple[str, ...] = attrs.field(converter=as_tuple)
    #: Whether it is a stand-in; False = the real program under another name.
    stand_in: bool = True


@attrs.frozen(kw_only=True)
class Workload:
    """A benchmark against the router, run on rank 0 once the run is serving."""

    command: Command
    env: tuple[EnvSetting, ...] = attrs.field(default=(), converter=as_tuple)
    #: File that it writes and that is checked for validity; "" = none.
    result: str = ""
