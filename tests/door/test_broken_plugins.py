"""Broken outside plugins: each is one line that names plugin and hook, and hides nothing that is healthy."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import textwrap
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

from disagg_run.cli.main import main
from disagg_run.testing import FakeDistribution

if TYPE_CHECKING:
    from disagg_run.testing.fixtures import InstallPlugin

pytest_plugins = ["disagg_run.testing.fixtures"]

SOURCES = Path(__file__).parent
PLAN = ("plan", "--engine", "toy-disagg", "--model", "toy-model", "--format", "json")

SITE = """
from disagg_run import Command, EnvSetting, Extension, Flag, Preflight, Simulation, flag, hookimpl

@hookimpl
def disagg_plugin():
    return Extension(name="bad-site", summary="broken on purpose", kind="site")
"""


def module(path: str) -> ModuleType:
    """A plugin module from its source tree, under a name of its own."""
    name = f"door_{Path(path).parent.name}_{Path(path).stem}".replace("-", "_")
    spec = importlib.util.spec_from_file_location(name, SOURCES / path)
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


@pytest.fixture(autouse=True)
def toy(install_plugin: InstallPlugin, monkeypatch: pytest.MonkeyPatch) -> None:
    """The healthy toy engine and its connector, installed."""
    monkeypatch.delenv("DISAGG_RUN_DISABLE", raising=False)
    install_plugin("toy-disagg", module("toy-disagg/toy_disagg/plugin.py"), distribution="toy-disagg-plugin")
    install_plugin("toy-link", module("toy-link/toy_link.py"), distribution="toy-link-plugin")


def refusal(capfd: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    """Exit code and the one line of a refused command."""
    code = main(words)
    out, err = capfd.readouterr()
    assert out == ""
    assert err.startswith("disagg-run: error: ")
    assert err.count("\n") == 1, err
    return code, err.removeprefix("disagg-run: error: ").rstrip()


def listing(capfd: pytest.CaptureFixture[str]) -> tuple[set[str], dict[str, str]]:
    """What ``disagg-run engines`` shows: healthy plugins, and broken ones with their line."""
    assert main(("engines", "--format", "json")) == 0
    found = json.loads(capfd.readouterr().out)
    return {each["name"] for each in found["plugins"]}, {each["name"]: each["reason"] for each in found["problems"]}


UNLOADABLE = [
    pytest.param(
        "import nowhere_to_be_found",
        "plugin 'bad-site' (distribution 'bad-dist') cannot be imported: "
        "ModuleNotFoundError(\"No module named 'nowhere_to_be_found'\")",
        id="import error",
    ),
    pytest.param(
        SITE + "@hookimpl\ndef disagg_enviroment(ctx): return ()",
        "plugin 'bad-site' (distribution 'bad-dist') implements the unknown hook 'disagg_enviroment'",
        id="misspelt hook",
    ),
    pytest.param(
        SITE + "@hookimpl\ndef disagg_env(context): return ()",
        "plugin 'bad-site' (distribution 'bad-dist') takes 'context' in disagg_env, which has 'ctx'",
        id="wrong argument",
    ),
    pytest.param(
        SITE.replace("return Extension", "return dict"),
        "plugin 'bad-site' (distribution 'bad-dist') returned dict from disagg_plugin, an Engine or Extension is ",
        id="wrong type of record",
    ),
]


@pytest.mark.parametrize(("source", "line"), UNLOADABLE)
def test_a_plugin_that_cannot_be_loaded_is_listed_and_stops_plans_with_the_switch(
    install_plugin: InstallPlugin,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    source: str,
    line: str,
) -> None:
    install_plugin("bad-site", source, distribution="bad-dist")
    healthy, broken = listing(capfd)
    assert healthy >= {"toy-disagg", "toy-link"}
    assert broken["bad-site"].startswith(line)
    code, told = refusal(capfd, *PLAN)
    assert code == 4
    assert told.startswith(line)
    assert told.endswith("to go on without it set DISAGG_RUN_DISABLE=bad-site")
    monkeypatch.setenv("DISAGG_RUN_DISABLE", "bad-site")
    assert main(PLAN) == 0


FAILING = [
    pytest.param(
        "@hookimpl\ndef disagg_env(ctx): return [EnvSetting('A', ctx.ports['nothing'])]",
        "plugin 'bad-site' failed in disagg_env for prefill-0: KeyError('nothing')",
        id="exception in a hook",
    ),
    pytest.param(
        "@hookimpl\ndef disagg_args(ctx):\n    yield flag('--dtype', 'bf16')\n    raise OSError('late')",
        "plugin 'bad-site' failed in disagg_args for prefill-0: OSError('late')",
        id="generator that fails late",
    ),
    pytest.param(
        "@hookimpl\ndef disagg_preflight(ctx): return None",
        "plugin 'bad-site' returned from disagg_preflight for rank 0 None, an iterable of Preflight is expected: "
        "return () where there is nothing to add",
        id="None",
    ),
    pytest.param(
        "@hookimpl\ndef disagg_env(ctx): return {'A': '1'}",
        "plugin 'bad-site' returned from disagg_env for prefill-0 dict {'A': '1'}, an iterable of EnvSetting is "
        "expected",
        id="wrong return type",
    ),
    pytest.param(
        "@hookimpl\ndef disagg_server_command(ctx): return [Command(program=['other'])]",
        "plugins 'bad-site' and 'toy-disagg' answer disagg_server_command for prefill-0, exactly one must:"
        " leave out all but one with DISAGG_RUN_DISABLE",
        id="two answer one command",
    ),
]


@pytest.mark.parametrize(("hook", "line"), FAILING)
def test_a_hook_that_fails_stops_the_plan_with_plugin_hook_and_process(
    install_plugin: InstallPlugin, capfd: pytest.CaptureFixture[str], hook: str, line: str
) -> None:
    install_plugin("bad-site", SITE + hook)
    assert listing(capfd) == (listing(capfd)[0] | {"bad-site", "toy-disagg", "toy-link"}, {})
    assert refusal(capfd, *PLAN) == (4, line)


SECOND = SITE.replace("bad-site", "second-site")


@pytest.mark.parametrize(
    ("hooks", "line"),
    [
        pytest.param(
            [f"@hookimpl\ndef disagg_env(ctx): return [EnvSetting('RACK', '{index}')]" for index in (1, 2)],
            "plugins 'bad-site' and 'second-site' both set RACK of prefill-0: '1' and '2'",
            id="variable",
        ),
        pytest.param(
            [f"@hookimpl\ndef disagg_args(ctx): return [flag('--block-size', {index})]" for index in (1, 2)],
            "plugins 'bad-site' and 'second-site' set --block-size to different values: 1",
            id="flag",
        ),
    ],
)
def test_two_plugins_setting_one_value_are_both_named(
    install_plugin: InstallPlugin, capfd: pytest.CaptureFixture[str], hooks: list[str], line: str
) -> None:
    install_plugin("bad-site", SITE + hooks[0])
    install_plugin("second-site", SECOND + hooks[1])
    code, told = refusal(capfd, *PLAN)
    assert code == 4
    assert line in told


def test_two_engines_answering_one_command_are_both_named(
    install_plugin: InstallPlugin, capfd: pytest.CaptureFixture[str]
) -> None:
    # Only one engine takes part in a plan; the second answers as the connector that it also is for.
    source = SITE.replace("bad-site", "other-engine").replace('"site"', '"connector"')
    install_plugin(
        "other-engine", source + "@hookimpl\ndef disagg_router_command(ctx): return [Command(program=['x'])]"
    )
    code, told = refusal(capfd, *PLAN, "--connector", "other-engine")
    assert (code, told) == (
        4,
        "plugins 'other-engine' and 'toy-disagg' answer disagg_router_command for router, exactly one must:"
        " leave out all but one with DISAGG_RUN_DISABLE",
    )


def test_nobody_answering_a_command_names_hook_and_who_was_asked(
    install_plugin: InstallPlugin, capfd: pytest.CaptureFixture[str]
) -> None:
    mute = textwrap.dedent(
        """
        from disagg_run import Engine, Listener, ModelRow, Probe, hookimpl

        @hookimpl
        def disagg_plugin():
            return Engine(
                name="mute-disagg", summary="answers nothing", models=[ModelRow(name="toy-model")],
                versions="", default_version="1", default_connector="mute-link",
            )

        @hookimpl
        def disagg_readiness(ctx):
            return [Listener(name="http", default_port=8000, probe=Probe(kind="http"))]

        @hookimpl
        def disagg_server_command(ctx):
            return ()
        """
    )
    install_plugin("mute-disagg", mute)
    install_plugin("mute-link", SITE.replace("bad-site", "mute-link").replace('"site"', '"connector"'))
    code, told = refusal(capfd, "plan", "--engine", "mute-disagg", "--model", "toy-model")
    assert (code, told) == (
        4,
        "no plugin of the plan answers disagg_server_command for prefill-0 (asked: 'mute-disagg'): "
        "the engine 'mute-disagg' or its connector 'mute-link' must return a command",
    )


def test_two_distributions_with_one_name_are_both_named(
    install_plugin: InstallPlugin, capfd: pytest.CaptureFixture[str]
) -> None:
    install_plugin("bad-site", SITE, distribution="dist-one")
    install_plugin("bad-site", SITE, distribution="dist-two")
    healthy, broken = listing(capfd)
    assert healthy >= {"toy-disagg", "toy-link"}
    line = (
        "plugin 'bad-site' (distribution 'dist-one, dist-two') is offered by 2 distributions, so none of them is used"
    )
    assert broken["bad-site"].startswith(line)
    code, told = refusal(capfd, *PLAN)
    assert code == 4
    assert told.startswith(line)


def test_the_engine_that_is_asked_for_and_broken_is_the_error(
    install_plugin: InstallPlugin, capfd: pytest.CaptureFixture[str]
) -> None:
    install_plugin("bad-disagg", "raise RuntimeError('no licence')", distribution="bad-dist")
    code, told = refusal(capfd, "plan", "--engine", "bad-disagg", "--model", "m")
    assert code == 4
    assert "plugin 'bad-disagg' (distribution 'bad-dist') cannot be imported: RuntimeError('no licence')" in told
    code, told = refusal(capfd, "engines", "bad-disagg")
    assert code == 4
    assert "RuntimeError('no licence')" in told


def test_a_fresh_interpreter_says_the_same_in_one_line_without_a_traceback(tmp_path: Path) -> None:
    fake = FakeDistribution(
        directory=tmp_path / "bad", name="bad-dist", plugins={"bad-site": "import nowhere_to_be_found\n"}
    )
    fake.write()
    argv = [sys.executable, "-m", "disagg_run"]
    listed = subprocess.run([*argv, "engines"], env=fake.environment(), capture_output=True, text=True, check=True)
    assert "plugin 'bad-site' (distribution 'bad-dist') cannot be imported: ModuleNotFoundError" in listed.stdout
    assert "atom-disagg" in listed.stdout
    words = ["plan", "--engine", "atom-disagg", "--model", "DeepSeek-V4-Pro"]
    refused = subprocess.run([*argv, *words], env=fake.environment(), capture_output=True, text=True)
    assert refused.returncode == 4
    assert refused.stderr.count("\n") == 1
    assert refused.stderr.startswith(
        "disagg-run: error: plugin 'bad-site' (distribution 'bad-dist') cannot be imported"
    )
