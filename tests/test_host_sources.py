"""The host writes on each value which plugin set it, and keeps pluggy's traps out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import attrs
import pluggy
import pytest

from disagg_run import hookspecs
from disagg_run.context import RankContext
from disagg_run.declarations import Extension
from disagg_run.errors import PluginError
from disagg_run.hookspecs import hookimpl
from disagg_run.host_loading import HOOKS
from disagg_run.records import Command, EnvSetting, Flag, Listener, ServiceProcess, Workload, flag
from disagg_run.sources import Layer, Source
from tests.host_toy import connector, context, select, site

# --- sources ----------------------------------------------------------------------------------------------------------


ENGINE = Source(layer=Layer.ENGINE, plugin="toy-disagg")


def test_values_without_a_source_get_their_plugins() -> None:
    command = Command(program=["toy"], flags=[flag("--a", 1)])
    selection = select(
        connector(args=[flag("--c", {"k": 1})]),
        site(env=[EnvSetting("S", "1")]),
        server_command=[command],
        readiness=[Listener(name="http")],
        services=[
            ServiceProcess(
                name="store",
                kind="service",
                command=command,
                env=[EnvSetting("E", "1")],
                listeners=[Listener(name="rpc")],
            )
        ],
        workload=[Workload(command=command, env=[EnvSetting("W", "1")])],
    )
    ctx = context()
    assert selection.server_command(ctx).record.flags[0].source == ENGINE
    assert selection.args(ctx)[0].record.source == Source(layer=Layer.CONNECTOR, plugin="toy")
    assert selection.env(ctx)[0].record.source == Source(layer=Layer.SITE, plugin="my-site")
    assert selection.readiness(ctx)[0].record.source == ENGINE
    service = selection.services(ctx)[0].record
    assert [service.command.flags[0].source, service.env[0].source, service.listeners[0].source] == [ENGINE] * 3
    workload = selection.workload(ctx)[0].record
    assert [workload.command.flags[0].source, workload.env[0].source] == [ENGINE] * 2


def test_a_source_that_a_plugin_gives_is_kept_and_gets_its_name_only_where_it_is_the_plugins_own() -> None:
    table = Source(layer=Layer.MODEL, where="models.yaml:3")
    user = Source(layer=Layer.COMMAND_LINE, where="--set block_size")
    other = Source(layer=Layer.MODEL, plugin="other")
    flags = [flag(f"--{index}", source=source) for index, source in enumerate((table, user, other))]
    leaf = Flag("--json", json={"k": 1}, leaf_sources={"k": table})
    sources = [each.record.source for each in select(args=[*flags, leaf]).args(context())]
    named = attrs.evolve(table, plugin="toy-disagg")
    assert sources == [named, user, other, ENGINE]
    assert select(args=[leaf]).args(context())[0].record.leaf_sources == {"k": named}


def test_stamping_changes_nothing_but_the_source() -> None:
    flags = [Flag("--a", ("1", "2")), Flag("--b", json={"k": {"l": [1]}}), Flag("--c")]
    stamped = [each.record for each in select(args=flags).args(context())]
    assert [attrs.evolve(each, source=None) for each in stamped] == flags
    settings = [EnvSetting("A", "x", op="prepend"), EnvSetting("B", op="unset"), EnvSetting("C", op="secret")]
    assert [attrs.evolve(each.record, source=None) for each in select(env=settings).env(context())] == settings


# --- pluggy -----------------------------------------------------------------------------------------------------------


def test_a_hook_need_not_take_the_context_and_may_give_it_a_default() -> None:
    class Site:
        """Takes what it wants."""

        @hookimpl
        def disagg_plugin(self) -> Extension:
            return Extension(name="my-site", summary="", kind="site")

        @hookimpl
        def disagg_env(self) -> Iterable[EnvSetting]:
            return [EnvSetting("A", "1")]

        @hookimpl
        def disagg_args(self, ctx: RankContext | None = None) -> Iterable[Flag]:
            return [flag("--rank", ctx.rank if ctx else "none")]

    selection = select(Site())
    assert selection.env(context())[0].record.value == "1"
    # pluggy 1.7 would pass an argument that has a default, 1.6 would not.
    assert selection.args(context())[0].record.values == ("3",)


def test_the_order_marks_of_pluggy_do_not_change_the_order_of_names() -> None:
    class Last:
        """Wants to be first."""

        @hookimpl
        def disagg_plugin(self) -> Extension:
            return Extension(name="z-site", summary="", kind="site")

        @hookimpl(tryfirst=True)
        def disagg_env(self, ctx: RankContext) -> Iterable[EnvSetting]:
            return [EnvSetting("Z", "1")]

    selection = select(Last(), site("a-site", env=[EnvSetting("A", "1")]))
    assert [each.plugin for each in selection.env(context())] == ["a-site", "z-site"]


def test_the_specifications_use_nothing_on_which_pluggys_releases_differ() -> None:
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    for name in HOOKS:
        spec = getattr(manager.hook, name).spec
        assert not spec.opts["firstresult"]
        assert not spec.opts["historic"]
        assert getattr(hookspecs, name).__defaults__ is None


def test_frozen_inputs_stay_frozen() -> None:
    def meddle(ctx: RankContext) -> Any:
        ctx.rank = 1  # type: ignore[misc]

    with pytest.raises(PluginError, match="FrozenInstanceError"):
        select(env=meddle).env(context())
    mapping: Mapping[str, Any] = context().ports
    with pytest.raises(TypeError):
        mapping["http"] = 1  # type: ignore[index]
