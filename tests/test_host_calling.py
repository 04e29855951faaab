"""The host calls hooks: order, checks, and what each plugin's fault looks like."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from disagg_run.context import RankContext
from disagg_run.errors import ConflictError, ParityError, PlanError, PluginError
from disagg_run.host import Contribution
from disagg_run.host_loading import HOOKS
from disagg_run.records import (
    Command,
    ContainerNeeds,
    EnvSetting,
    Flag,
    Listener,
    Patch,
    Preflight,
    ServiceProcess,
    Simulation,
    Workload,
    flag,
)
from disagg_run.sources import Layer, Source
from tests.host_toy import connector, context, rank_context, select, site


def test_implementations_are_called_in_the_order_of_their_names() -> None:
    selection = select(
        site("b-site", env=[EnvSetting("B", "1")]),
        site("a-site", env=[EnvSetting("A", "1")]),
        env=[EnvSetting("T", "1")],
    )
    assert [(each.plugin, each.record.source, each.record.name) for each in selection.env(context())] == [
        ("a-site", Source(layer=Layer.SITE, plugin="a-site"), "A"),
        ("b-site", Source(layer=Layer.SITE, plugin="b-site"), "B"),
        ("toy-disagg", Source(layer=Layer.ENGINE, plugin="toy-disagg"), "T"),
    ]


def test_every_hook_has_its_typed_method_and_its_record() -> None:
    records: dict[str, Any] = {
        "services": ServiceProcess(name="store", kind="service", command=Command(program=["store"])),
        "readiness": Listener(name="http"),
        "server_command": Command(program=["server"]),
        "router_command": Command(program=["router"]),
        "args": flag("--a"),
        "env": EnvSetting("A", "1"),
        "patches": Patch(id="p", why="w", package=["toy"], file="toy.py", edits=[]),
        "simulation": Simulation(program=["stand-in"]),
        "workload": Workload(command=Command(program=["bench"])),
    }
    records["container"] = ContainerNeeds()
    records["preflight"] = Preflight(name="model", kind="path_exists")
    assert {f"disagg_{name}" for name in records} | {"disagg_plugin"} == set(HOOKS)
    answers: Any = {name: [record] for name, record in records.items()}
    selection = select(**answers)
    for name, record in records.items():
        found = getattr(selection, name)(context())
        given = found if isinstance(found, Contribution) else found[0]
        assert type(given.record) is type(record), name
        assert given.plugin == "toy-disagg"


def _late_failure(ctx: RankContext) -> Iterator[EnvSetting]:
    yield EnvSetting("A", "1")
    raise KeyError("foo")


def _failure(ctx: RankContext) -> list[EnvSetting]:
    raise ValueError("two\nlines")


def _exit(ctx: RankContext) -> list[EnvSetting]:
    raise SystemExit(2)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (_failure, r"plugin 'toy-disagg' failed in disagg_env for decode-0: ValueError('two\nlines')"),
        (_late_failure, "plugin 'toy-disagg' failed in disagg_env for decode-0: KeyError('foo')"),
        (_exit, "plugin 'toy-disagg' failed in disagg_env for decode-0: SystemExit(2)"),
        (
            None,
            "plugin 'toy-disagg' returned from disagg_env for decode-0 None, an iterable of EnvSetting is expected: "
            "return () where there is nothing to add",
        ),
        (
            EnvSetting("A", "1"),
            "plugin 'toy-disagg' returned from disagg_env for decode-0 a bare EnvSetting, an iterable of EnvSetting is "
            "expected: return [EnvSetting(...)]",
        ),
        (5, "plugin 'toy-disagg' returned from disagg_env for decode-0 int 5, an iterable of EnvSetting is expected"),
        (
            {"A": "1"},
            "plugin 'toy-disagg' returned from disagg_env for decode-0 dict {'A': '1'}, an iterable of EnvSetting is "
            "expected",
        ),
        (
            "A=1",
            "plugin 'toy-disagg' returned from disagg_env for decode-0 str 'A=1', an iterable of EnvSetting is expect",
        ),
        (["A=1"], "plugin 'toy-disagg' returned from disagg_env for decode-0 str 'A=1', EnvSetting is expected"),
        ([flag("--a")], "plugin 'toy-disagg' returned from disagg_env for decode-0 Flag Flag(name='--a', "),
        (
            [EnvSetting("A", 1)],  # type: ignore[arg-type]
            "plugin 'toy-disagg' returned from disagg_env for decode-0 int 1 as the value of A, text is expected",
        ),
    ],
)
def test_a_failing_hook_or_a_wrong_record_names_plugin_hook_and_process(answer: Any, said: str) -> None:
    with pytest.raises(PluginError) as caught:
        select(env=answer).env(context())
    assert str(caught.value).startswith(said)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 4
    assert caught.value.__cause__ is not None


@pytest.mark.parametrize(
    ("hook", "answer", "said"),
    [
        ("args", [Flag("--tp-size", (8,))], "int 8 as a value of --tp-size, text is expected"),
        ("args", [flag("--a", {"k": {1}})], "a value of --a that is no JSON: set {1}"),
        ("args", [Flag("--a", json=[1])], "json=[1] in --a, a mapping is expected"),  # type: ignore[arg-type]
        (
            "server_command",
            [Command(program=["toy"], flags=["--port 8000"])],
            "str '--port 8000' among the flags of a Command, Flag is expected",
        ),
        ("server_command", [Command(program=[])], "a Command without a program"),
        ("server_command", [Command(program=["toy", 1])], "int 1 as a program word of a Command, text is expected"),
        (
            "services",
            [ServiceProcess(name="store", kind="service", command=["store"])],  # type: ignore[arg-type]
            "list ['store'] among the command of service 'store', Command is expected",
        ),
    ],
)
def test_a_wrong_part_of_a_record_is_named(hook: str, answer: Any, said: str) -> None:
    with pytest.raises(PluginError) as caught:
        getattr(select(**{hook: answer}), hook)(context())
    assert str(caught.value) == f"plugin 'toy-disagg' returned from disagg_{hook} for decode-0 {said}"


def test_text_where_a_sequence_belongs_does_not_fall_into_letters() -> None:
    with pytest.raises(PluginError, match=r"a sequence is expected, not the text '16': write \('16',\)"):
        select(args=lambda ctx: [Flag("--tp-size", "16")]).args(context())


def test_hooks_of_a_rank_name_the_rank() -> None:
    with pytest.raises(PluginError, match=r"plugin 'toy-disagg' failed in disagg_preflight for rank 3: KeyError"):
        select(preflight=_late_failure_of_rank).preflight(rank_context(3))


def _late_failure_of_rank(ctx: RankContext) -> Any:
    raise KeyError(ctx.rank)


def test_a_plugins_own_refusal_keeps_class_exit_code_and_remedy_and_gets_its_name() -> None:
    def refuse(ctx: RankContext) -> Any:
        raise ParityError("prefill and decode differ", remedy="set both")

    with pytest.raises(ParityError) as caught:
        select(args=refuse).args(context())
    assert str(caught.value) == "decode-0 (plugin 'toy-disagg'): prefill and decode differ: set both"
    assert (caught.value.exit_code, caught.value.remedy) == (5, "set both")


def test_a_refusal_that_names_its_plugin_is_left_as_it_is() -> None:
    def refuse(ctx: RankContext) -> Any:
        raise PlanError("plugin 'toy-disagg' cannot do that")

    with pytest.raises(PlanError, match=r"^plugin 'toy-disagg' cannot do that$"):
        select(args=refuse).args(context())


def test_two_plugins_answering_one_command_is_a_conflict_that_names_both() -> None:
    answer = [Command(program=["toy"])]
    with pytest.raises(ConflictError) as caught:
        select(connector(server_command=answer), server_command=answer).server_command(context())
    assert str(caught.value) == (
        "plugins 'toy' and 'toy-disagg' answer disagg_server_command for decode-0, exactly one must:"
        " leave out all but one with DISAGG_RUN_DISABLE"
    )


def test_one_plugin_answering_a_command_twice_is_a_conflict() -> None:
    with pytest.raises(ConflictError, match="plugin 'toy-disagg' gives 2 records, which all answer"):
        select(router_command=[Command(program=["toy"])] * 2).router_command(context())


def test_nobody_answering_a_command_is_a_conflict_that_names_hook_process_and_who_was_asked() -> None:
    with pytest.raises(ConflictError) as caught:
        select(server_command=()).server_command(context())
    assert str(caught.value) == (
        "no plugin of the plan answers disagg_server_command for decode-0 (asked: 'toy-disagg'): "
        "the engine 'toy-disagg' or its connector 'toy' must return a command"
    )


def test_two_stand_ins_for_one_process_are_a_conflict() -> None:
    answer = [Simulation(program=["toy"])]
    with pytest.raises(ConflictError, match=r"plugins 'my-site' and 'toy-disagg' .*disagg_simulation for decode-0"):
        select(site(simulation=answer), simulation=answer).simulation(context())


def test_two_plugins_naming_one_listener_is_a_conflict_that_names_both() -> None:
    answer = [Listener(name="http")]
    with pytest.raises(ConflictError, match="plugins 'my-site' and 'toy-disagg' both name a listener 'http'"):
        select(site(readiness=answer), readiness=answer).readiness(context())
