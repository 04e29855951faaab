"""Flags and variables that follow from the plan, so that another value by hand is refused (``Flag.option``)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal

import attrs

from disagg_run.addresses import is_loopback
from disagg_run.context import ProcessContext, any_address
from disagg_run.records import FIXED, EnvSetting, Flag, flag
from disagg_run.sources import CORE_DEFAULT, Layer, Source

#: Why something may not be given by hand, where that is the same for every program.
PLAIN_HTTP = "probes and the router speak plain HTTP over TCP"
NO_KEY = "neither probes nor the router bring a key, and it would stand in the plan"
COMPLETES_TEXT = "a run is ready when a text is completed"
#: Of each variable that names a network device, the texts that name the loopback device alone.
_LOOPBACK = {"NCCL_SOCKET_IFNAME": ("lo", "=lo"), "GLOO_SOCKET_IFNAME": ("lo",)}
PLACED_BY_PLAN = "the plan places each process itself"
UNSEEN_FILE = "flags of a file are seen by nobody here: write them out as --args"


def option_flag(
    ctx: ProcessContext, name: str, field: str, *values: object, why: str = "", implied: bool = False
) -> Flag:
    """The flag ``name`` with what the process's role was asked for as ``field`` of its ``RoleSpec``: ``tp``.

    ``values``: none = a switch; ``why``: how it follows from the option, where it is not its value; ``implied``: the
    program does so without being told.
    """
    option = f"{ctx.process.role}.{field}"
    # Whether a value is the default is found by a walk through the spec, which large plans would feel.
    source = ctx.spec.sources.get(option, CORE_DEFAULT) if implied else ctx.spec.source(option)
    return flag(name, *values, source=attrs.evolve(source, why=why) if why else source, option=option, implied=implied)


def implied_flag(name: str, *values: object, option: str, why: str = "", agreeing: Iterable[str] = ()) -> Flag:
    """A flag that the program need not be told, against which one by hand is held; no values = it is not given.

    ``option``: the option from which it follows, by its dotted path in ``LaunchSpec``, or ``FIXED``; ``why``: where
    that does not speak for itself; ``agreeing``: further values by hand that the plan is right for.
    """
    made = flag(name, *values, source=_default(why), option=option, implied=True)
    return attrs.evolve(made, agreeing=agreeing) if agreeing else made


def never_flag(name: str, why: str) -> Flag:
    """A flag that nobody may give. Such flags are best made once, since a plan may have a thousand nodes."""
    return implied_flag(name, option=FIXED, why=why)


def refused_values(name: str, *values: str, why: str) -> Flag:
    """A flag that may have any value but these."""
    return attrs.evolve(never_flag(name, why), contrary=values)


def held_variable(
    name: str, value: str = "", *, option: str = FIXED, why: str = "", agreeing: Iterable[str] = ()
) -> EnvSetting:
    """A variable that the program need not be told, and that by hand may only be ``value``; "" = nobody may set it.

    ``option``, ``why`` and ``agreeing`` as for ``implied_flag``.
    """
    op: Literal["set", "unset"] = "set" if value else "unset"
    return EnvSetting(name, value, op=op, option=option, implied=True, source=_default(why), agreeing=agreeing)


def meeting_variables(ctx: ProcessContext) -> Iterator[EnvSetting]:
    """Variables of collectives that may not keep a worker over nodes on the loopback device of each (NCCL, Gloo)."""
    if ctx.process.node_count == 1 or is_loopback(ctx.node.address):
        return
    for name, values in _LOOPBACK.items():
        yield attrs.evolve(held_variable(name, why="a worker's nodes meet over it"), contrary=values)


def host_flag(ctx: ProcessContext) -> Flag:
    """Where a server waits: at every address of its node's family; by hand the node's own is right too.

    For IPv6 that is ``::``, which is not right for IPv4: a socket of Python's asyncio on it takes no IPv4.
    """
    address = ctx.node.address
    return Flag("--host", (any_address(address),), option=FIXED, agreeing=(address,), per_node=("",))


def bracketed_host_flag(ctx: ProcessContext, *, implied: bool) -> Flag:
    """``--host`` of a program that reads host and port as one address, so that one of IPv6 stands in brackets.

    A socket on ``[::]`` takes IPv4 too, as those of Rust's programs do on Linux. ``implied``: the program waits at
    0.0.0.0 by itself.
    """
    address = ctx.node.address
    if ":" in address:
        return Flag("--host", ("[::]",), option=FIXED, agreeing=(f"[{address}]",))
    source = CORE_DEFAULT if implied else None
    return Flag("--host", ("0.0.0.0",), source=source, option=FIXED, implied=implied, agreeing=("[::]", address))


def _default(why: str) -> Source:
    return attrs.evolve(CORE_DEFAULT, why=why) if why else CORE_DEFAULT


def served_name_flag(ctx: ProcessContext, name: str, *, told: bool) -> Flag:
    """``--served-model-name`` with the name that probes and clients use, for a server that takes its model's path.

    ``told``: whether it must be said even where the user names none, since the path differs from node to node.
    """
    asked = ctx.spec.served_model_name
    source = ctx.spec.source("served_model_name") if asked else CORE_DEFAULT
    if told and not asked:
        source = Source(layer=Layer.ENGINE, plugin=ctx.engine.name, why="one name, whichever snapshot a node has")
    implied = not (asked or told)
    return flag("--served-model-name", name, source=source, option="served_model_name", implied=implied)
