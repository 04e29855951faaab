"""The kit for plugin authors: it passes a good engine, and says of each bad one what is wrong with it."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from disagg_run import (
    CatalogueRef,
    Command,
    Engine,
    EnvSetting,
    Extension,
    Flag,
    Listener,
    ModelRow,
    PlanError,
    PluginError,
    Preflight,
    Probe,
    ProcessContext,
    RankContext,
    RoleSpec,
    Setting,
    SharedValue,
    Simulation,
    SpecError,
    build_host,
    flag,
    hookimpl,
)
from disagg_run.testing import (
    ContractBroken,
    FakeDistribution,
    check_engine,
    contract_violations,
    host_for,
    installed_plugin,
    plan_for,
)

RECORD = Engine(
    name="good-disagg",
    summary="keeps the contract",
    models=[ModelRow(name="good-model"), ModelRow(name="other-model")],
    versions=">=1",
    default_version="1.0",
    default_connector="good-link",
    multi_node_workers=True,
)


class Good:
    """An engine that keeps the contract; tests break one thing at a time."""

    record = RECORD

    @hookimpl
    def disagg_plugin(self) -> Engine:
        return self.record

    @hookimpl
    def disagg_readiness(self, ctx: ProcessContext) -> Iterable[Listener]:
        return [Listener(name="http", default_port=8000, probe=Probe(kind="http"))]

    @hookimpl
    def disagg_server_command(self, ctx: ProcessContext) -> Iterable[Command]:
        return [Command(program=["good-server"], flags=tuple(self.flags(ctx)))]

    def flags(self, ctx: ProcessContext) -> Iterator[Flag]:
        yield flag("--port", ctx.ports["http"])
        yield flag("--node-rank", ctx.process.node_rank)

    @hookimpl
    def disagg_router_command(self, ctx: ProcessContext) -> Iterable[Command]:
        return [Command(program=["good-router"], flags=[flag("--port", ctx.ports["http"])])]

    @hookimpl
    def disagg_simulation(self, ctx: ProcessContext) -> Iterable[Simulation]:
        return [Simulation(program=["@python", "-m", "good"])]


def wrong_with(engine: object, name: str = "good-disagg", **options: Any) -> str:
    return "\n".join(contract_violations(name, host=host_for(engine), **options))


def test_a_good_engine_passes() -> None:
    assert contract_violations("good-disagg", host=host_for(Good())) == ()
    check_engine("good-disagg", host=host_for(Good()))


def test_every_installed_engine_keeps_the_contract() -> None:
    host = build_host()
    assert host.engines()
    for name in host.engines():
        check_engine(name, host=host)


def test_an_engine_that_is_not_there_is_one_line() -> None:
    assert contract_violations("good-disag", host=host_for(Good())) == (
        "unknown engine 'good-disag': did you mean 'good-disagg'? installed are: good-disagg",
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"summary": ""}, "summary is ''"),
        ({"summary": "two\nlines"}, "summary is 'two\\nlines'"),
        ({"default_version": "0.9"}, "default_version '0.9' is not in versions '>=1'"),
        ({"versions": "one"}, "versions 'one' or default_version '1.0' cannot be read"),
        ({"models": []}, "there is no model in its table"),
        ({"models": [ModelRow(name="a"), ModelRow(name="a")]}, "model 'a' stands twice for versions all"),
        ({"models": [ModelRow(name="a", versions="x")]}, "model 'a' has versions='x', which is no version range"),
        ({"models": ["a"]}, "plugin 'good-disagg' has str 'a' among its models"),
        (
            {"settings": [Setting(name="Block-Size", type="int", summary="x")]},
            "setting 'Block-Size': write names in l",
        ),
        ({"settings": [Setting(name="block_size", type="int", summary="")]}, "setting 'block_size' has no summary"),
        ({"parity": [SharedValue(name="block", why="x")]}, "parity 'block' names no flag or variable that carries it"),
        ({"parity": [SharedValue(name="block", flag="--a")]}, "parity 'block' does not say why"),
        (
            {"catalogues": [CatalogueRef(program="server", version="1.0", file=Path("/nowhere/flags.json"))]},
            "the server catalogue flags.json cannot be read",
        ),
    ],
)
def test_a_bad_record_is_named(change: dict[str, Any], said: str) -> None:
    class Bad(Good):
        """Says wrong things of itself."""

        record = attrs.evolve(RECORD, **change)

    assert said in wrong_with(Bad())


def test_a_default_version_without_a_catalogue_of_its_own_is_told(tmp_path: Path) -> None:
    file = tmp_path / "flags.json"
    file.write_text('{"schema": 1, "command": "good-server", "version": "0.9", "source": "hand", "flags": []}')

    class Bad(Good):
        """Knows the flags of another version."""

        record = attrs.evolve(RECORD, catalogues=[CatalogueRef(program="server", version="0.9", file=file)])

    assert "default_version '1.0' has no catalogue of its own (there are 0.9)" in wrong_with(Bad())


def test_unknown_flags_are_told_even_where_the_planner_only_warns(tmp_path: Path) -> None:
    file = tmp_path / "flags.json"
    file.write_text(
        '{"schema": 1, "command": "good-server", "version": "0.9", "source": "hand", '
        '"flags": [{"names": ["--port"], "arity": 1, "kind": "int"}]}'
    )
    reference = CatalogueRef(program="server", version="0.9", file=file)

    class Bad(Good):
        """Writes a flag that is in no catalogue."""

        record = attrs.evolve(RECORD, default_version="1.0", catalogues=[reference])

    from disagg_run.testing.contract_plans import Case, plan_violations

    host = host_for(Bad())
    case = Case(host=host, engine=host.engine("good-disagg"), models=(("good-model", "1.0"),))
    assert any("warning:" in line and "--node-rank" in line for line in plan_violations(case))


def test_a_plugin_without_a_docstring_is_told() -> None:
    class Bare(Good):
        pass

    Bare.__doc__ = None
    assert "Bare has no docstring" in wrong_with(Bare())


class NoProbe(Good):
    """Cannot be told ready from dead."""

    @hookimpl
    def disagg_readiness(self, ctx: ProcessContext) -> Iterable[Listener]:
        return [Listener(name="http", default_port=8000, probe=Probe(kind="tcp"))]


class PortUntold(Good):
    """Listens somewhere."""

    def flags(self, ctx: ProcessContext) -> Iterator[Flag]:
        yield flag("--node-rank", ctx.process.node_rank)


class Twice(Good):
    """Writes program words that are flags, and again as a flag."""

    @hookimpl
    def disagg_server_command(self, ctx: ProcessContext) -> Iterable[Command]:
        return [Command(program=["good-server", "--port", "1", "--unsaid"], flags=tuple(self.flags(ctx)))]


class Impure(Good):
    """Counts its calls."""

    counter = itertools.count()

    def flags(self, ctx: ProcessContext) -> Iterator[Flag]:
        yield from super().flags(ctx)
        yield flag("--seed", next(self.counter))


class NoStandIn(Good):
    """Cannot be simulated."""

    @hookimpl
    def disagg_simulation(self, ctx: ProcessContext) -> Iterable[Simulation]:
        return ()


class OtherWhenSimulated(Good):
    """Cheats under simulation."""

    def flags(self, ctx: ProcessContext) -> Iterator[Flag]:
        yield from super().flags(ctx)
        if not ctx.spec.simulate:
            yield flag("--real")


class FollowersAlike(Good):
    """Starts followers like heads."""

    def flags(self, ctx: ProcessContext) -> Iterator[Flag]:
        yield flag("--port", ctx.ports["http"])


class Refuses(Good):
    """Refuses what it should plan."""

    def flags(self, ctx: ProcessContext) -> Iterator[Flag]:
        if len(ctx.heads_of("decode")) > 1:
            raise PlanError("one decode worker at most")
        yield from super().flags(ctx)


class Fails(Good):
    """Fails in a hook."""

    @hookimpl
    def disagg_env(self, ctx: ProcessContext) -> Iterable[EnvSetting]:
        return [EnvSetting("A", str(ctx.ports["missing"]))]


class NumberForText(Good):
    """Gives a number where a check takes text."""

    @hookimpl
    def disagg_preflight(self, ctx: RankContext) -> Iterable[Preflight]:
        port: Any = 8000
        return [Preflight(name="port", kind="port_free", target=port)]


@pytest.mark.parametrize(
    ("engine", "said"),
    [
        (NoProbe, "good-model 1P1D: no http or generation probe proves prefill-0 ready (disagg_readiness)"),
        (PortUntold, "good-model 1P1D: prefill-0 is not told its HTTP port 8000"),
        (Twice, "good-model 1P1D: --port stands 2 times in the command of prefill-0"),
        (Twice, "good-model 1P1D: nobody is named as the source of --unsaid of prefill-0: is it a program word?"),
        (NumberForText, "good-model 1P1D: the plan cannot be written as JSON and read back: the plan document does"),
        (Impure, "good-model 2P1D: the same spec gives another plan the second time: a hook is not pure"),
        (NoStandIn, "good-model: nobody answers disagg_simulation for decode-0"),
        (OtherWhenSimulated, "good-model: under --simulate prefill-0 has other flags"),
        (FollowersAlike, "good-model: head and follower of prefill-0 are started alike"),
        (
            Refuses,
            "good-model 1P2D: cannot be planned: plugin 'good-disagg' in disagg_server_command for prefill-0: one "
            "decode worker at most",
        ),
        (
            Fails,
            "good-model 1P1D: cannot be planned: plugin 'good-disagg' failed in disagg_env for prefill-0: Key",
        ),
    ],
)
def test_a_bad_plan_is_told_with_model_layout_and_process(engine: type[Good], said: str) -> None:
    assert said in wrong_with(engine())


def test_every_model_of_the_table_is_planned_unless_one_is_named() -> None:
    told = wrong_with(NoProbe())
    assert "other-model 2P1D" in told
    assert "other-model" not in wrong_with(NoProbe(), model="good-model")


def test_workers_over_nodes_are_planned_or_refused_as_the_record_says() -> None:
    class OneNode(Good):
        """Cannot span nodes."""

        record = attrs.evolve(RECORD, multi_node_workers=False)

    assert wrong_with(OneNode()) == ""

    class Narrow(Good):
        """Says that it spans nodes and does not."""

        def flags(self, ctx: ProcessContext) -> Iterator[Flag]:
            if ctx.process.node_count > 1:
                raise PlanError("one node at most")
            yield from super().flags(ctx)

    assert "a worker of 16 GPUs gives no plan and no TopologyError" in wrong_with(Narrow())


def test_the_error_lists_everything_that_is_wrong() -> None:
    with pytest.raises(ContractBroken, match="breaks the contract") as caught:
        check_engine("good-disagg", host=host_for(NoStandIn()))
    assert isinstance(caught.value, AssertionError)
    lines = str(caught.value).splitlines()
    assert [line for line in lines if line.startswith("- ")] == lines[1:]
    assert len(lines) == 3


# --- a plan for one plugin ---------------------------------------------------------------------------------------


class Site:
    """Sets a variable."""

    def __init__(self, engines: Any = "all", kind: Any = "site") -> None:
        self.record = Extension(name="my-site", summary="", kind=kind, engines=engines)

    @hookimpl
    def disagg_plugin(self) -> Extension:
        return self.record

    @hookimpl
    def disagg_env(self, ctx: ProcessContext) -> Iterable[EnvSetting]:
        return [EnvSetting("MY_SITE", ctx.process.name)]


def test_a_plan_for_one_site_plugin_needs_no_engine() -> None:
    plan = plan_for(Site())
    assert plan.process("decode-0").env["MY_SITE"] == "decode-0"


def test_the_engine_that_stands_in_bears_the_name_that_the_plugin_is_for() -> None:
    plan = plan_for(Site(engines=("special-disagg",)), prefill=2)
    assert plan.engine == "special-disagg"
    assert plan.process("prefill-1").env["MY_SITE"] == "prefill-1"


def test_a_plan_for_one_connector_uses_it() -> None:
    plan = plan_for(Site(kind="connector"))
    assert plan.connector == "my-site"
    assert plan.process("prefill-0").env["MY_SITE"] == "prefill-0"


def test_a_plan_for_one_engine_needs_no_connector_and_takes_any_field_of_the_spec() -> None:
    plan = plan_for(Good(), model="other-model", decode=RoleSpec(workers=2, tp=4), simulate=True)
    assert (plan.model.name, plan.simulated) == ("other-model", True)
    assert plan.process("decode-1").gpus == (0, 1, 2, 3)


def test_what_is_installed_does_not_take_part_in_a_plan_for_one_plugin() -> None:
    assert {each.name for each in plan_for(Good()).plugins} == {"good-disagg", "good-link"}


def test_two_engines_under_test_must_be_told_apart() -> None:
    class Other(Good):
        """Another engine."""

        record = attrs.evolve(RECORD, name="other-disagg")

    with pytest.raises(SpecError, match="2 engines are under test: name one of good-disagg, other-disagg by engine="):
        plan_for(Good(), Other())
    assert plan_for(Good(), Other(), engine="other-disagg").engine == "other-disagg"


def test_a_broken_plugin_under_test_is_an_error() -> None:
    class Bad(Site):
        """Misspells a hook."""

        @hookimpl
        def disagg_envs(self, ctx: ProcessContext) -> Iterable[EnvSetting]:
            return ()

    with pytest.raises(PluginError, match="plugin 'my-site' implements the unknown hook 'disagg_envs'"):
        plan_for(Bad())


# --- fake distributions ------------------------------------------------------------------------------------------

SITE_SOURCE = """
from disagg_run import Extension, hookimpl

@hookimpl
def disagg_plugin():
    return Extension(name="fake-site", summary="", kind="site")
"""


def installed() -> dict[str, tuple[str, str]]:
    return {each.name: (each.distribution, each.version) for each in build_host().plugins()}


def test_an_installed_plugin_is_found_within_the_block_only(tmp_path: Path) -> None:
    path, modules = list(sys.path), set(sys.modules)
    with installed_plugin(tmp_path, "fake-site", SITE_SOURCE, distribution="Fake.Dist", version="2.5"):
        assert installed()["fake-site"] == ("Fake.Dist", "2.5")
    assert "fake-site" not in installed()
    assert sys.path == path
    assert {name for name in set(sys.modules) - modules if name.startswith("fake_")} == set()


def test_an_object_can_be_installed_too(tmp_path: Path) -> None:
    with installed_plugin(tmp_path, "my-site", Site()):
        assert installed()["my-site"] == ("my-site-dist", "1.0")


def test_a_block_that_fails_uninstalls_as_well(tmp_path: Path) -> None:
    with pytest.raises(KeyError), installed_plugin(tmp_path, "fake-site", SITE_SOURCE):
        raise KeyError
    assert "fake-site" not in installed()


def test_one_distribution_may_bring_several_plugins(tmp_path: Path) -> None:
    other = SITE_SOURCE.replace("fake-site", "other-site")
    fake = FakeDistribution(
        directory=tmp_path / "fake", name="fake", plugins={"fake-site": SITE_SOURCE, "other-site": other}
    )
    with fake.installed():
        assert installed().items() >= {"fake-site": ("fake", "1.0"), "other-site": ("fake", "1.0")}.items()


def test_child_interpreters_find_it_through_the_environment(tmp_path: Path) -> None:
    program = "from disagg_run import build_host; print(list(build_host().extensions()))"
    with installed_plugin(tmp_path, "fake-site", SITE_SOURCE) as fake:
        argv = [sys.executable, "-c", program]
        done = subprocess.run(argv, env=fake.environment(), capture_output=True, text=True, check=True)
    assert "'fake-site'" in done.stdout
