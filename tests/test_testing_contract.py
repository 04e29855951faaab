"""The engine contract: it passes a good engine, and says of each bad one what is wrong with it."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from disagg_run import (
    CatalogueRef,
    Command,
    EnvSetting,
    Flag,
    Listener,
    ModelRow,
    PlanError,
    Preflight,
    Probe,
    ProcessContext,
    RankContext,
    Setting,
    SharedValue,
    Simulation,
    flag,
    hookimpl,
)
from disagg_run.testing import ContractBroken, check_engine, contract_violations, host_for
from disagg_run.testing.contract import _told_flags
from tests.toy_engine import RECORD, Good


def wrong_with(engine: object, name: str = "good-disagg", **options: Any) -> str:
    return "\n".join(contract_violations(name, host=host_for(engine), **options))


def test_a_good_engine_passes() -> None:
    assert contract_violations("good-disagg", host=host_for(Good())) == ()
    check_engine("good-disagg", host=host_for(Good()))


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


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"context_flag": "--contxt"}, "context_flag names the flag '--contxt'"),
        (
            {"settings": [Setting(name="size", type="int", summary="x", flag="--sise")]},
            "setting 'size' names the flag '--sise'",
        ),
        ({"context_flag": "--context"}, ""),
    ],
)
def test_a_flag_that_the_record_names_must_be_one_of_the_servers(
    change: dict[str, Any], what: str, tmp_path: Path
) -> None:
    file = tmp_path / "flags.json"
    file.write_text(
        '{"schema": 1, "command": "good-server", "version": "1.0", "source": "hand", '
        '"flags": [{"names": ["--context"], "arity": 1, "kind": "int"}]}'
    )
    reference = CatalogueRef(program="server", version="1.0", file=file)
    record = attrs.evolve(RECORD, default_version="1.0", catalogues=[reference], **change)
    assert [line.partition(", which")[0] for line in _told_flags(record)] == ([what] if what else [])


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
            "good-model 1P2D: cannot be planned: prefill-0 (plugin 'good-disagg'): one decode worker at most",
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
