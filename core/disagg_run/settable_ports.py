"""Listeners whose port a user may fix by a setting or an option, and who chose the port that a flag then says."""

from __future__ import annotations

from typing import Any

from disagg_run.context import ProcessContext, RankContext
from disagg_run.declarations import Setting
from disagg_run.records import Listener
from disagg_run.sources import Layer, Source
from disagg_run.spec.model import Role


def port_setting(name: str, summary: str, variable: str = "", *, unset: str = "") -> Setting:
    """The setting ``name`` that fixes a port, 1 to 65535.

    ``variable``: of the environment contract, "" = none; ``unset``: the text that job scripts export where nobody chose
    a port, "" = none.
    """
    return Setting(
        name=name,
        type="int",
        summary=summary,
        env={variable: None} if variable else {},
        unset_values=(unset,) if unset else (),
        minimum=1,
        maximum=65535,
    )


def settable(
    ctx: RankContext, name: str, setting: str, default: int, *, role: Role | None = None, **more: Any
) -> Listener:
    """A listener whose port a setting can fix; ``default`` moves where it is taken.

    ``role``: whose setting it is, where it is not that of ``ctx``; ``more``: further fields of Listener.
    """
    port = ctx.setting(setting, role=role)
    return Listener(
        name=name,
        default_port=default if port is None else port,
        pinned=port is not None,
        option=setting,
        source=ctx.set_by(setting, role=role),
        **more,
    )


def router_http(ctx: ProcessContext, default: int, **more: Any) -> Listener:
    """The router's HTTP listener, whose port the user can fix; ``more``: further fields of Listener."""
    port = ctx.spec.router.port
    return Listener(
        name="http",
        default_port=default if port is None else port,
        pinned=port is not None,
        option="router.port",
        source=router_port_source(ctx),
        **more,
    )


def router_port_source(ctx: ProcessContext) -> Source | None:
    """Who chose the router's HTTP port; None = the plugin."""
    return None if ctx.spec.router.port is None else ctx.spec.source("router.port")


def port_source(ctx: ProcessContext, listener: str, setting: str, default: int) -> Source | None:
    """Who chose the port that a listener got: who set it, else the plugin (None, or with why another is not free)."""
    fixed = ctx.set_by(setting)
    if fixed is not None or ctx.ports.get(listener, default) == default:
        return fixed
    return Source(layer=Layer.ENGINE, plugin=ctx.engine.name, why=f"{default} is taken on this node")
