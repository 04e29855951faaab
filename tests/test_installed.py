"""``--python``: a plan for the engine that an interpreter has, by its own parser; here a toy's."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from textwrap import dedent

import attrs
import pytest

from disagg_run import ArgText, Engine, FlagError, Host, LaunchSpec, SpecError, build_host, hookimpl, plan
from disagg_run.cli.installed import as_installed
from tests.planning.toy import ToyEngine, ToyLink

SERVER, ROUTER = ("@python", "-m", "small_engine.server"), ("@python", "-m", "small_engine.router")
PARSERS = {
    "server": ("--role", "--port", "--tp", "--link", "--new-in-2"),
    "router": ("--port", "--prefill-0", "--decode-0"),
}


class Installable(ToyEngine):
    """The toy, with programs whose parsers can be asked."""

    @hookimpl
    def disagg_plugin(self) -> Engine:
        parsers = {"server": SERVER, "router": ROUTER}
        return attrs.evolve(super().disagg_plugin(), parsers=parsers, distributions=("small-engine",))


@pytest.fixture
def python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An interpreter that has version 2.1 of the engine."""
    package = tmp_path / "small_engine"
    package.mkdir()
    for program, flags in PARSERS.items():
        text = f"""
            import argparse
            parser = argparse.ArgumentParser()
            for name in {flags!r}:
                parser.add_argument(name)
            parser.parse_args()
        """
        (package / f"{program}.py").write_text(dedent(text))
    info = tmp_path / "small_engine-2.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: small-engine\nVersion: 2.1+cpu\n")
    (info / "top_level.txt").write_text("small_engine\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    return sys.executable


@pytest.fixture
def host() -> Host:
    return build_host(plugins=[Installable(), ToyLink()], entry_points=False)


def spec(*words: str, **fields: str) -> LaunchSpec:
    return LaunchSpec(engine="toy-disagg", model="toy-small", args=[ArgText(words=words)], **fields)  # type: ignore[arg-type]


def test_the_installed_version_is_planned_for_and_its_source_says_so(python: str, host: Host) -> None:
    asked, catalogues = as_installed(spec(), host.engine("toy-disagg"), python)
    made = plan(asked, host=host, catalogues=catalogues)
    assert made.engine_version == "2.1"
    assert made.sources is not None
    assert str(made.sources.values["/engine_version"][0][0]) == (
        "command line --python: small-engine 2.1+cpu is installed there"
    )
    assert sorted(catalogues) == ["router", "server"]
    assert made.warnings == ()


def test_an_unknown_flag_is_an_error_and_one_that_is_new_there_is_none(python: str, host: Host) -> None:
    asked, catalogues = as_installed(spec("--new-in-3", "1"), host.engine("toy-disagg"), python)
    with pytest.raises(
        FlagError, match=r"small_engine\.server 2\.1 has no flag '--new-in-3'.*did you mean '--new-in-2'"
    ):
        plan(asked, host=host, catalogues=catalogues)
    asked, catalogues = as_installed(spec("--new-in-2", "1"), host.engine("toy-disagg"), python)
    assert "--new-in-2" in plan(asked, host=host, catalogues=catalogues).process("prefill-0").argv


def test_another_version_than_the_one_asked_for_is_refused(python: str, host: Host) -> None:
    with pytest.raises(SpecError, match=r"has toy-disagg 2\.1, but 1\.9 is asked for"):
        as_installed(spec(engine_version="1.9"), host.engine("toy-disagg"), python)
    asked, _ = as_installed(spec(engine_version="2.1.0"), host.engine("toy-disagg"), python)
    assert asked.engine_version == "2.1.0"


def test_an_interpreter_without_the_engine_and_an_engine_without_a_program_are_refused(
    python: str, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = host.engine("toy-disagg")
    with pytest.raises(SpecError, match="names no server program"):
        as_installed(spec(), attrs.evolve(engine, parsers={}), python)
    monkeypatch.delenv("PYTHONPATH")
    with pytest.raises(SpecError, match=r"'python3 -m small_engine\.server' is not installed"):
        as_installed(spec(), engine, python)
