"""Calling plugins: what they return is checked, and their names stand in every error and value."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from disagg_run.declarations import Extension, ModelRow, Setting, SharedValue
from disagg_run.errors import ConflictError, DisaggError, PluginError, SpecError
from disagg_run.near_miss import did_you_mean, nearest
from tests.host_toy import connector, engine, host_of, plugin, site

# --- engines, extensions, models --------------------------------------------------------------------------------------


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
            "model table (plugin 'toy-disagg'): models.yaml:3: unknown key 'tpp': did you mean 'tp'?",
        ),
        (["toy"], PluginError, "plugin 'toy-disagg' has str 'toy' among its models, a ModelRow is expected"),
    ],
)
def test_a_broken_model_table_names_its_plugin(models: Any, error: type[DisaggError], said: str) -> None:
    host = host_of(plugin(engine(models=models)), connector())
    with pytest.raises(error) as caught:
        host.models("toy-disagg")
    assert str(caught.value) == said


# --- selecting --------------------------------------------------------------------------------------------------------


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
