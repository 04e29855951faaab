"""The kit for plugin authors: a plan for one plugin, and fake distributions."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import attrs
import pytest

from disagg_run import EnvSetting, Extension, PluginError, ProcessContext, RoleSpec, SpecError, build_host, hookimpl
from disagg_run.testing import FakeDistribution, installed_plugin, plan_for
from tests.toy_engine import RECORD, Good

# --- a plan for one plugin --------------------------------------------------------------------------------------------


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


# --- fake distributions -----------------------------------------------------------------------------------------------


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
