"""Finding plugins: each broken one is one line that names it, and hides no other."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import types
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from disagg_run.declarations import Extension
from disagg_run.errors import PluginError, SpecError
from disagg_run.hookspecs import hookimpl
from disagg_run.host import Host, build_host
from disagg_run.records import Command
from disagg_run.testing import FakeDistribution
from tests.host_toy import connector, engine, plugin

if TYPE_CHECKING:
    from disagg_run.testing.fixtures import InstallPlugin

pytest_plugins = ["disagg_run.testing.fixtures"]


def toy_engine(name: str = "toy-disagg") -> object:
    return plugin(engine(name))


def source(body: str) -> str:
    """Source of a plugin module that says it is ``RECORD`` of ``body``."""
    head = """
        from disagg_run import Engine, Extension, ModelRow, hookimpl

        @hookimpl
        def disagg_plugin():
            return RECORD
    """
    return textwrap.dedent(head) + textwrap.dedent(body)


SITE = 'RECORD = Extension(name="bad-site", summary="ours", kind="site")\n'


def problem(host: Host, name: str) -> str:
    found = [str(each) for each in host.problems() if each.name == name]
    assert len(found) == 1, host.problems()
    assert "\n" not in found[0]
    return found[0]


def test_an_installed_plugin_is_found_with_its_distribution_and_version(install_plugin: InstallPlugin) -> None:
    install_plugin("toy-disagg", toy_engine(), distribution="toy-engine", version="3.1")
    host = build_host()
    used = {each.name: (each.distribution, each.version) for each in host.plugins()}
    assert used["toy-disagg"] == ("toy-engine", "3.1")
    assert host.engine("toy-disagg").summary == "a toy"


def test_first_party_engines_come_from_entry_points_like_anyones() -> None:
    entries = [each for each in entry_points(group="disagg_run") if each.dist and each.dist.name == "disagg-run"]
    assert entries
    found = {each.name: each.distribution for each in build_host(disabled=()).plugins()}
    # Beside them stands what else is installed here.
    assert {each.name for each in entries} == {name for name, whose in found.items() if whose == "disagg-run"}
    assert build_host(entry_points=False).plugins() == ()


def test_a_plugin_may_be_an_object_a_class_or_a_module() -> None:
    class Site:
        """A site."""

        @hookimpl
        def disagg_plugin(self) -> Extension:
            return Extension(name="as-class", summary="", kind="site")

    module = types.ModuleType("as_module")
    exec(source('RECORD = Extension(name="as-module", summary="", kind="site")'), module.__dict__)
    host = build_host(plugins=[toy_engine("as-object"), Site, module], entry_points=False)
    assert host.problems() == ()
    assert [each.name for each in host.plugins()] == ["as-class", "as-module", "as-object"]


def test_an_import_error_names_plugin_distribution_and_cause_and_hides_no_other(install_plugin: InstallPlugin) -> None:
    install_plugin("bad-site", "import nowhere_to_be_found\n", distribution="bad-dist")
    install_plugin("toy-disagg", toy_engine())
    host = build_host()
    assert problem(host, "bad-site") == (
        "plugin 'bad-site' (distribution 'bad-dist') cannot be imported: "
        "ModuleNotFoundError(\"No module named 'nowhere_to_be_found'\")"
    )
    assert "toy-disagg" in host.engines()


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("raise SystemExit(3)", "cannot be imported: SystemExit(3)"),
        ("def broken(:", "cannot be imported: SyntaxError"),
        ("raise ValueError('two\\nlines')", r"cannot be imported: ValueError('two\nlines')"),
        ("RECORD = None", "returned NoneType from disagg_plugin, an Engine or Extension is expected"),
        ("RECORD = {'name': 'bad-site'}", "returned dict from disagg_plugin, an Engine or Extension is expected"),
        (SITE.replace("bad-site", "other"), "calls itself 'other' in disagg_plugin: it must be the entry point's na"),
        (
            SITE.replace('"site"', '"sight"'),
            "has the kind 'sight' in disagg_plugin: it may be connector, site, patches",
        ),
        (
            SITE.replace('kind="site"', 'kind="site", engines="toy-disagg"'),
            "has engines='toy-disagg' in disagg_plugin: give a tuple of names, or 'all'",
        ),
        ("RECORD = Extension(name='bad-site')", "cannot be imported: TypeError"),
        ("def disagg_plugin(): return 1", "has no disagg_plugin hook: mark the function with @hookimpl"),
        ("del disagg_plugin", "has no disagg_plugin hook"),
        (
            "@hookimpl\ndef disagg_plugin(): return undefined_name",
            "failed in disagg_plugin: NameError(\"name 'undefined_name' is not defined\")",
        ),
        (
            SITE + "@hookimpl\ndef disagg_envs(ctx): return ()",
            "implements the unknown hook 'disagg_envs': did you mean 'disagg_env'?",
        ),
        (
            SITE + "@hookimpl\ndef disagg_agrs(ctx): ...\n@hookimpl\ndef disagg_prefligt(ctx): ...",
            "implements the unknown hook 'disagg_agrs': did you mean 'disagg_args'?; "
            "implements the unknown hook 'disagg_prefligt': did you mean 'disagg_preflight'?",
        ),
        (SITE + "@hookimpl\ndef disagg_env(context): return ()", "takes 'context' in disagg_env, which has 'ctx'"),
        (SITE + "@hookimpl\ndef disagg_env(ctx, x): return ()", "takes 'x' in disagg_env, which has 'ctx'"),
        (
            SITE + "@hookimpl(wrapper=True)\ndef disagg_env(ctx):\n    result = yield\n    return result",
            "has a wrapper for disagg_env: hooks are called one by one, return records instead",
        ),
    ],
)
def test_a_broken_plugin_is_one_line_that_says_what_is_wrong(
    install_plugin: InstallPlugin, body: str, said: str
) -> None:
    install_plugin("bad-site", source(body), distribution="bad-dist")
    install_plugin("toy-disagg", toy_engine())
    host = build_host(disabled=())
    assert problem(host, "bad-site").startswith(f"plugin 'bad-site' (distribution 'bad-dist') {said}")
    assert "bad-site" not in host.extensions()
    assert "toy-disagg" in host.engines()


def test_two_distributions_offering_one_name_are_both_named_and_refused(install_plugin: InstallPlugin) -> None:
    install_plugin("toy-disagg", toy_engine(), distribution="toy-one")
    install_plugin("toy-disagg", toy_engine(), distribution="toy-two")
    install_plugin("toy", connector())
    host = build_host()
    assert problem(host, "toy-disagg") == (
        "plugin 'toy-disagg' (distribution 'toy-one, toy-two') is offered by 2 distributions, so none of them is used: "
        "uninstall all but one"
    )
    assert "toy-disagg" not in host.engines()
    assert "toy" in host.extensions()
    with pytest.raises(PluginError, match="toy-one, toy-two"):
        host.engine("toy-disagg")


def test_a_program_that_registers_two_plugins_of_one_name_is_told() -> None:
    host = build_host(plugins=[connector(), connector()], entry_points=False)
    assert problem(host, "toy") == "plugin 'toy' is registered twice by the program"


def test_a_plugin_given_by_a_program_takes_the_place_of_the_installed_one(install_plugin: InstallPlugin) -> None:
    install_plugin("toy-disagg", toy_engine(), distribution="toy-one")
    host = build_host(plugins=[toy_engine()])
    assert [each.distribution for each in host.plugins() if each.name == "toy-disagg"] == [""]
    assert not [each for each in host.problems() if each.name == "toy-disagg"]


def test_disabled_plugins_are_not_even_imported(install_plugin: InstallPlugin, monkeypatch: pytest.MonkeyPatch) -> None:
    install_plugin("bad-site", "import nowhere_to_be_found\n")
    install_plugin("toy-disagg", toy_engine())
    monkeypatch.setenv("DISAGG_RUN_DISABLE", "bad-site, toy-disagg")
    host = build_host()
    assert not {"bad-site", "toy-disagg"} & {
        *(each.name for each in host.plugins()),
        *(each.name for each in host.problems()),
    }
    with pytest.raises(SpecError, match="engine 'toy-disagg' is disabled: take it out of DISAGG_RUN_DISABLE"):
        host.engine("toy-disagg")
    assert "toy-disagg" in build_host(disabled=["bad-site"]).engines()


def test_a_broken_plugin_of_unknown_kind_stops_a_plan_and_names_the_switch(install_plugin: InstallPlugin) -> None:
    install_plugin("bad-site", "import nowhere_to_be_found\n")
    given = [toy_engine(), connector()]
    with pytest.raises(PluginError, match=r"to go on without it set DISAGG_RUN_DISABLE=bad-site$") as caught:
        build_host(plugins=given).select("toy-disagg", None)
    assert isinstance(caught.value.__cause__, ModuleNotFoundError)
    assert build_host(plugins=given, disabled=["bad-site"]).select("toy-disagg", None).connector.name == "toy"


@pytest.mark.parametrize(
    ("record", "patches", "stops"),
    [
        ('Extension(name="bad", summary="", kind="site")', (), True),
        ('Extension(name="bad", summary="", kind="site", engines=("toy-disagg",))', (), True),
        ('Extension(name="bad", summary="", kind="site", engines=("other-disagg",))', (), False),
        ('Extension(name="bad", summary="", kind="connector")', (), False),
        ('Extension(name="bad", summary="", kind="patches")', (), False),
        ('Extension(name="bad", summary="", kind="patches")', ("any-patch",), True),
        (
            'Engine(name="bad", summary="", models=(), versions="", default_version="1", default_connector="")',
            (),
            False,
        ),
    ],
)
def test_a_broken_plugin_stops_only_plans_that_might_need_it(
    install_plugin: InstallPlugin, record: str, patches: tuple[str, ...], stops: bool
) -> None:
    install_plugin("bad", source(f"RECORD = {record}\n@hookimpl\ndef disagg_envs(ctx): return ()"))
    host = build_host(plugins=[toy_engine(), connector()])
    if stops:
        with pytest.raises(PluginError, match=r"'disagg_envs'.*DISAGG_RUN_DISABLE=bad"):
            host.select("toy-disagg", None, patches)
    else:
        assert host.select("toy-disagg", None, patches).engine.name == "toy-disagg"


def test_a_hook_that_does_not_fit_still_tells_its_kind(install_plugin: InstallPlugin) -> None:
    install_plugin(
        "bad",
        source(
            'RECORD = Extension(name="bad", summary="", kind="connector")\n'
            "@hookimpl\ndef disagg_env(context): return ()"
        ),
    )
    host = build_host(plugins=[toy_engine(), connector()])
    assert host.select("toy-disagg", None).connector.name == "toy"
    with pytest.raises(PluginError, match=r"plugin 'bad' .*takes 'context' in disagg_env, which has 'ctx'"):
        host.select("toy-disagg", "bad")


def test_a_broken_plugin_leaves_nothing_behind(install_plugin: InstallPlugin) -> None:
    install_plugin(
        "a-bad",
        source(
            'RECORD = Extension(name="a-bad", summary="", kind="site")\n'
            "@hookimpl\ndef disagg_env(ctx): return 1/0\n"
            "@hookimpl\ndef disagg_readines(ctx): return ()"
        ),
    )
    install_plugin(
        "z-bad",
        source(
            'RECORD = Extension(name="z-bad", summary="", kind="site")\n'
            "@hookimpl\ndef disagg_args(ctx): return 1/0\n"
            "@hookimpl\ndef disagg_env(contxt): return ()"
        ),
    )
    host = build_host(plugins=[toy_engine(), connector()])
    assert "unknown hook 'disagg_readines'" in problem(host, "a-bad")
    assert "'contxt' in disagg_env" in problem(host, "z-bad")
    assert host.extensions().keys() == {"toy"} | build_host().extensions().keys()


def test_the_same_plugins_are_found_whatever_the_order_of_the_path(tmp_path: Path) -> None:
    for name in ("b-dist", "a-dist"):
        own = name[0] + "-site"
        FakeDistribution(
            directory=tmp_path / name,
            name=name,
            plugins={own: source(f'RECORD = Extension(name="{own}", summary="", kind="site")')},
        ).write()
    program = "from disagg_run import build_host; print([p.name for p in build_host().plugins() if 'site' in p.name])"
    seen = set()
    for seed, order in (("1", "ab"), ("2", "ba")):
        path = os.pathsep.join(str(tmp_path / f"{letter}-dist") for letter in order)
        environment = {**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": seed}
        done = subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
        )
        seen.add(done.stdout)
    assert seen == {"['a-site', 'b-site']\n"}


def test_a_plugin_may_answer_hooks_of_another_core_release_if_it_says_so() -> None:
    class Newer:
        """Has a hook that this core does not know, marked optional."""

        @hookimpl
        def disagg_plugin(self) -> Extension:
            return Extension(name="newer", summary="", kind="site")

        @hookimpl(optionalhook=True)
        def disagg_of_the_future(self, ctx: object) -> tuple[Command, ...]:
            return ()

    host = build_host(plugins=[Newer()], entry_points=False)
    assert host.problems() == ()
    assert "newer" in host.extensions()
