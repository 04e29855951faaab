"""Flags that say what an option of the plan says, so that another value by hand is refused (``Flag.option``)."""

from __future__ import annotations

import attrs

from disagg_run.context import ProcessContext
from disagg_run.records import Flag, flag
from disagg_run.sources import CORE_DEFAULT, Layer, Source


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


def implied_flag(name: str, *values: object, option: str, why: str = "") -> Flag:
    """A flag that the program need not be told, against which one by hand is held; no values = it is not given.

    ``option``: the option from which it follows, by its dotted path in ``LaunchSpec``, or ``FIXED``; ``why``: where
    that does not speak for itself.
    """
    source = attrs.evolve(CORE_DEFAULT, why=why) if why else CORE_DEFAULT
    return flag(name, *values, source=source, option=option, implied=True)


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
