"""The site plugin ``rack-site``: what every launch on our racks needs, whatever the engine."""

from __future__ import annotations

from collections.abc import Iterable

from disagg_run import EnvSetting, Extension, Preflight, ProcessContext, RankContext, hookimpl


@hookimpl
def disagg_plugin() -> Extension:
    return Extension(name="rack-site", summary="our racks: scratch disk and network device", kind="site")


@hookimpl
def disagg_env(ctx: ProcessContext) -> Iterable[EnvSetting]:
    return [EnvSetting("RACK_RANK", str(ctx.rank)), EnvSetting("PATH", "/opt/rack/bin", op="prepend")]


@hookimpl
def disagg_preflight(ctx: RankContext) -> Iterable[Preflight]:
    scratch = Preflight(name="scratch", kind="path_exists", target="/tmp", remedy="mount the scratch disk")
    return [scratch]
