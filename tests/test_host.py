"""Calling plugins: what they return is checked, and their names stand in every error and value."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import attrs
import pluggy
import pytest

from disagg_run import hookspecs
from disagg_run.context import Process, ProcessContext, RankContext
from disagg_run.declarations import Engine, Extension, ModelRow, Setting, SharedValue
from disagg_run.errors import ConflictError, DisaggError, ParityError, PlanError, PluginError, SpecError
from disagg_run.hookspecs import hookimpl
from disagg_run.host import Contribution, Host, Selection, build_host
from disagg_run.host_loading import HOOKS
from disagg_run.near_miss import did_you_mean, nearest
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
from disagg_run.spec.model import LaunchSpec, Node


def engine(name: str = "toy-disagg", **fields: Any) -> Engine:
    given = {"models": [ModelRow(name="toy-model")], "versions": "", "default_version": "1.0", **fields}
    return Engine(name=name, summary="a toy", default_connector="toy", **given)


def plugin(record: Engine | Extension, **hooks: Any) -> object:
    """A plugin that answers each hook with a value, or with what a function of the context gives."""

    def implementation(answer: Any) -> Any:
        def implemented(self: object, ctx: RankContext) -> Any:
            return answer(ctx) if callable(answer) else answer

        return implemented

    def disagg_plugin(self: object) -> Engine | Extension:
        return record

    body = {"disagg_plugin": hookimpl(disagg_plugin), "__doc__": "A plugin of a test."}
    for name, answer in hooks.items():
        body[f"disagg_{name}"] = hookimpl(implementation(answer))
    return type(record.name, (), body)()


def connector(name: str = "toy", **hooks: Any) -> object:
    return plugin(Extension(name=name, summary="", kind="connector"), **hooks)


def site(name: str = "my-site", **hooks: Any) -> object:
    return plugin(Extension(name=name, summary="", kind="site"), **hooks)


def host_of(*plugins: object) -> Host:
    host = build_host(plugins=plugins, entry_points=False)
    assert host.problems() == ()
    return host


def select(*others: object, **engine_hooks: Any) -> Selection:
    """A selection of a toy engine with these hooks, a silent connector unless one is given, and others."""
    plugins = [plugin(engine(), **engine_hooks), *others]
    if not any(isinstance(each, Extension) and each.kind == "connector" for each in map(_record, others)):
        plugins.append(connector())
    return host_of(*plugins).select("toy-disagg", None)


def _record(given: Any) -> object:
    return given.disagg_plugin()


def rank_context(rank: int = 3) -> RankContext:
    node = Node(address="192.0.2.1")
    return RankContext(
        spec=LaunchSpec(engine="toy-disagg", model="toy-model"),
        engine=engine(),
        model=ModelRow(name="toy-model"),
        model_path="/models/toy-model",
        engine_version="1.0",
        connector="toy",
        rank=rank,
        node=node,
        facts=None,
        heads=(),
        first_node=node,
    )


def context(name: str = "decode-0") -> ProcessContext:
    fields = {field.name: getattr(rank_context(), field.name) for field in attrs.fields(RankContext)}
    return ProcessContext(**fields, process=Process(name=name, kind="server", role="decode"))


# --- engines, extensions, models ---------------------------------------------------------------------------------


def test_a_name_that_differs_in_case_alone_is_the_near_miss() -> None:
    assert nearest("ATOM-DISAGG", ["atom-disagg", "atom"]) == "atom-disagg"
    assert did_you_mean("kv", ["KV", "kv_role"]) == "did you mean 'KV'?"
    assert nearest("kv", ["abc"]) is None


def test_engines_and_extensions_are_listed_by_name() -> None:
    host = host_of(connector("z"), plugin(engine("b-disagg")), site("a"), plugin(engine("a-disagg")))
    assert list(host.engines()) == ["a-disagg", "b-disagg"]
    assert list(host.extensions()) == ["a", "z"]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("toy-disag", "unknown engine 'toy-disag': did you mean 'toy-disagg'? installed are: toy-disagg"),
        ("nothing", "unknown engine 'nothing': installed are: toy-disagg"),
        ("toy", "'toy' is no engine, its kind is connector: use toy-disagg"),
    ],
)
def test_an_unknown_engine_is_a_spec_error_that_names_the_nearest(name: str, said: str) -> None:
    with pytest.raises(SpecError) as caught:
        host_of(plugin(engine()), connector()).engine(name)
    assert str(caught.value) == said


def test_the_model_table_is_read_when_first_asked_for_and_once() -> None:
    reads = []

    def models() -> Iterator[ModelRow]:
        reads.append(1)
        yield ModelRow(name="late")

    host = host_of(plugin(engine(models=models)), connector())
    assert host.engine("toy-disagg").name == "toy-disagg"
    assert reads == []
    assert [row.name for row in host.models("toy-disagg")] == ["late"]
    assert host.models("toy-disagg") is host.models("toy-disagg")
    assert reads == [1]


def _broken_table() -> Iterator[ModelRow]:
    yield ModelRow(name="first")
    raise OSError("no such file")


def _wrong_table() -> Iterable[ModelRow]:
    raise SpecError("models.yaml:3: unknown key 'tpp'", remedy="did you mean 'tp'?")


@pytest.mark.parametrize(
    ("models", "error", "said"),
    [
        (_broken_table, PluginError, "plugin 'toy-disagg' failed to give its models: OSError('no such file')"),
        (
            _wrong_table,
            SpecError,
            "plugin 'toy-disagg' in its model table: models.yaml:3: unknown key 'tpp': did you mean 'tp'?",
        ),
        (["toy"], PluginError, "plugin 'toy-disagg' has str 'toy' among its models, a ModelRow is expected"),
    ],
)
def test_a_broken_model_table_names_its_plugin(models: Any, error: type[DisaggError], said: str) -> None:
    host = host_of(plugin(engine(models=models)), connector())
    with pytest.raises(error) as caught:
        host.models("toy-disagg")
    assert str(caught.value) == said


# --- selecting ---------------------------------------------------------------------------------------------------


def _extension(name: str, kind: Any, engines: Any = "all", **fields: Any) -> object:
    return plugin(Extension(name=name, summary="", kind=kind, engines=engines, **fields))


def test_a_plan_calls_its_engine_one_connector_the_fitting_sites_and_the_patch_sets_asked_for() -> None:
    host = host_of(
        plugin(engine()),
        plugin(engine("other-disagg")),
        connector(),
        connector("toy2"),
        _extension("a-site", "site"),
        _extension("b-site", "site", ("toy-disagg",)),
        _extension("c-site", "site", ("other-disagg",)),
        _extension("toy-patches", "patches", ("toy-disagg",), patch_sets=("timeouts",)),
        _extension("more-patches", "patches"),
    )

    def names(connector_name: str | None = None, *patches: str) -> list[str]:
        return [each.name for each in host.select("toy-disagg", connector_name, patches).plugins]

    assert names() == ["a-site", "b-site", "toy", "toy-disagg"]
    assert names("toy2") == ["a-site", "b-site", "toy-disagg", "toy2"]
    assert names(None, "toy-patches") == ["a-site", "b-site", "toy", "toy-disagg", "toy-patches"]
    assert names(None, "timeouts") == ["a-site", "b-site", "toy", "toy-disagg", "toy-patches"]
    # The name of a single patch is known to its plugin only, so all that fit are asked.
    assert names(None, "one-patch") == ["a-site", "b-site", "more-patches", "toy", "toy-disagg", "toy-patches"]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("toi", "unknown connector 'toi' for engine 'toy-disagg': did you mean 'toy'? installed are: toy"),
        ("a-site", "'a-site' is no connector, its kind is site: use toy"),
        ("foreign", "connector 'foreign' is not for engine 'toy-disagg': use toy"),
    ],
)
def test_a_connector_that_does_not_fit_is_a_spec_error(name: str, said: str) -> None:
    host = host_of(
        plugin(engine()), connector(), _extension("a-site", "site"), _extension("foreign", "connector", ("x-disagg",))
    )
    with pytest.raises(SpecError) as caught:
        host.select("toy-disagg", name)
    assert str(caught.value) == said


def test_an_engine_without_its_connector_says_that_there_is_none() -> None:
    with pytest.raises(SpecError) as caught:
        host_of(plugin(engine())).select("toy-disagg", None)
    assert str(caught.value) == (
        "unknown connector 'toy' for engine 'toy-disagg': install a plugin that brings one: no connector is there"
    )


def test_settings_are_united_and_a_name_that_two_plugins_declare_differently_names_both() -> None:
    one = Setting(name="block_size", type="int", summary="tokens")
    other = Setting(name="block_size", type="str", summary="tokens")
    host = host_of(plugin(engine(settings=[one])), _extension("toy", "connector", settings=[one]))
    assert host.select("toy-disagg", None).settings == {"block_size": one}
    host = host_of(plugin(engine(settings=[one])), _extension("toy", "connector", settings=[other]))
    with pytest.raises(ConflictError, match="plugins 'toy' and 'toy-disagg' declare the setting 'block_size' differen"):
        _ = host.select("toy-disagg", None).settings


def test_parity_is_united_and_stands_once() -> None:
    shared = SharedValue(name="block-size", flag="--block-size")
    own = SharedValue(name="mode", env="TOY_MODE")
    host = host_of(plugin(engine(parity=[shared])), _extension("toy", "connector", parity=[shared, own]))
    assert host.select("toy-disagg", None).parity == (shared, own)


# --- calling -----------------------------------------------------------------------------------------------------


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
    assert str(caught.value) == "plugin 'toy-disagg' in disagg_args for decode-0: prefill and decode differ: set both"
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


# --- sources -----------------------------------------------------------------------------------------------------

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


# --- pluggy ------------------------------------------------------------------------------------------------------


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
