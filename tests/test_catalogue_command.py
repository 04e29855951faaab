"""Catalogues compared, and the command that takes them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from disagg_run.catalogue import Catalogue
from disagg_run.catalogue_taking import differences
from disagg_run.cli.catalogue import command
from disagg_run.declarations import CatalogueRef, Engine
from disagg_run.errors import DisaggError, SpecError, UsageError
from disagg_run.hookspecs import hookimpl
from disagg_run.host import build_host
from tests.toy_site import SERVER, WANTED, Site, flags_of, record, toy_site


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    return toy_site(tmp_path, monkeypatch)


# --- comparing --------------------------------------------------------------------------------------------------------


def test_differences_name_what_is_new_gone_and_changed() -> None:
    def catalogue(*flags: dict[str, Any]) -> Catalogue:
        return Catalogue({"version": "1", "flags": flags})

    old = catalogue(
        record("--same"),
        record("--gone"),
        record("--a", choices=["x", "y"], default=1, kind="int"),
        record("--b", "-b", arity=1),
        record("--c", arity=0),
        record("--d"),
    )
    new = catalogue(
        record("--same"),
        record("--fresh"),
        record("--a", choices=["y", "z"], default=2, kind="str"),
        record("--b", "--bb", arity="+", repeatable=True),
        record("--c", arity=0, deprecated=True, successor="--e"),
        record("--d", default=3),
    )
    assert differences(old, old) == ()
    assert differences(old, new) == (
        "~ --a: new choice z; no choice x any more; takes str, before int; default 2, before 1",
        "~ --b: new name --bb; no name -b any more; takes 1 or more values, before 1; now repeatable",
        "~ --c: now deprecated; write --e instead",
        "+ --fresh",
        "- --gone",
    )


# --- the command ------------------------------------------------------------------------------------------------------


def invoke(*arguments: str) -> str:
    result = CliRunner().invoke(command, arguments, standalone_mode=False, catch_exceptions=False)
    return result.stdout


@pytest.fixture
def engines(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Installs toy engines whose server is the site's, by name and distribution."""

    def install(**programs: tuple[str, ...]) -> None:
        known = {"schema": 1, "version": "1.0", "flags": [*WANTED[:-1], record("--gone-since")]}
        (tmp_path / "1.0.json").write_text(json.dumps(known))
        ref = CatalogueRef(program="server", version="1.0", file=tmp_path / "1.0.json")
        plugins = [_engine_plugin(name.replace("_", "-"), words, ref) for name, words in programs.items()]
        monkeypatch.setattr("disagg_run.host.build_host", lambda: build_host(plugins=plugins, entry_points=False))

    site.module("toy_engine.server", "add_flags(argparse.ArgumentParser()).parse_args()", parser=True)
    return install


def _engine_plugin(name: str, program: tuple[str, ...], ref: CatalogueRef) -> object:
    class Plugin:
        @hookimpl
        def disagg_plugin(self) -> Engine:
            return Engine(
                name=name,
                summary="a toy",
                models=(),
                versions=">=1",
                default_version="1.0",
                default_connector="toy-kv",
                catalogues=(ref,),
                parsers={"server": program},
                distributions=("toy-engine",),
            )

    return Plugin()


def test_the_command_prints_or_writes_the_catalogue_of_the_one_engine_that_is_there(
    site: Site, engines: Callable[..., None], tmp_path: Path
) -> None:
    engines(toy_disagg=SERVER, other_disagg=("@python", "-m", "not_there"))
    printed = invoke("--python", site.python)
    assert flags_of(json.loads(printed)) == WANTED
    output = tmp_path / "out.json"
    assert invoke("--python", site.python, "--engine", "toy-disagg", "--output", str(output)) == ""
    assert output.read_text() == printed


def test_the_command_shows_what_changed_since_a_known_version(site: Site, engines: Callable[..., None]) -> None:
    engines(toy_disagg=SERVER)
    assert invoke("--python", site.python, "--diff", "1.0") == "- --gone-since\n+ --tp-size\n"
    with pytest.raises(SpecError, match=r"'toy-disagg' has no server catalogue of version '2.0': known: 1.0"):
        invoke("--python", site.python, "--diff", "2.0")


def test_the_command_takes_a_program_of_no_plugin(site: Site, engines: Callable[..., None]) -> None:
    engines()
    assert flags_of(json.loads(invoke("--python", site.python, "--", *SERVER))) == WANTED


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ([], SpecError, r"has the servers of several engines: 'a-disagg', 'b-disagg': choose one with --engine"),
        (["--program", "router"], SpecError, r"has no router of a known engine \(no engine names one\)"),
        (["--engine", "a-disagg", "--program", "router"], SpecError, r"engine 'a-disagg' names no router program"),
        (["--engine", "a-disag"], SpecError, r"did you mean 'a-disagg'"),
        (["--engine", "a-disagg", "--", "x"], UsageError, r"--engine and --diff do not go with a program of your own"),
        (["--", "@python", "-m"], UsageError, r"@python needs a module or a file after it"),
        (["--engine", "a-disagg", "--output", "/no/such/dir/x"], UsageError, r"cannot write .*: no such file"),
    ],
)
def test_the_command_refuses_what_it_cannot_do_in_one_line(
    site: Site, engines: Callable[..., None], arguments: list[str], error: type[DisaggError], message: str
) -> None:
    engines(a_disagg=SERVER, b_disagg=SERVER)
    with pytest.raises(error, match=message):
        invoke("--python", site.python, *arguments)
