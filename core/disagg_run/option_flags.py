"""Flags that say what an option of the plan says, so that another value by hand is refused (``Flag.option``)."""

from __future__ import annotations

import attrs

from disagg_run.context import ProcessContext
from disagg_run.records import Flag, flag
from disagg_run.sources import Layer, Source


def option_flag(
    ctx: ProcessContext, name: str, field: str, *values: object, why: str = "", implied: bool = False
) -> Flag:
    """The flag ``name`` with what the process's role was asked for as ``field`` of its ``RoleSpec``: ``tp``.

    ``values``: none = a switch; ``why``: how it follows from the option, where it is not its value; ``implied``: the
    program does so without being told.
    """
    option = f"{ctx.process.role}.{field}"
    source = ctx.spec.source(option)
    return flag(name, *values, source=attrs.evolve(source, why=why) if why else source, option=option, implied=implied)


def served_name_flag(ctx: ProcessContext, name: str, *, told: bool) -> Flag:
    """``--served-model-name`` with the name that probes and clients use, for a server that takes its model's path.

    ``told``: whether it must be said even where the user names none, since the path differs from node to node.
    """
    asked = ctx.spec.served_model_name
    own = Source(layer=Layer.ENGINE, plugin=ctx.engine.name, why="one name, whichever snapshot a node has")
    source = ctx.spec.source("served_model_name") if asked else own
    implied = not (asked or told)
    return flag("--served-model-name", name, source=source, option="served_model_name", implied=implied)
