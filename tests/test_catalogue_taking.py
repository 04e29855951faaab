"""Taking catalogues from toy programs, each run by a real interpreter of its own."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from click.testing import CliRunner

from disagg_run.catalogue import Catalogue, read_catalogue
from disagg_run.catalogue_taking import catalogue_text, differences, is_installed, take_catalogue
from disagg_run.cli.catalogue import command
from disagg_run.declarations import CatalogueRef, Engine
from disagg_run.errors import DisaggError, RunError, SpecError, UsageError
from disagg_run.hookspecs import hookimpl
from disagg_run.host import build_host

SERVER = ("@python", "-m", "toy_engine.server")

PARSER = """
    import argparse, atexit, functools, json, pathlib, threading, time

    class DeprecatedStoreTrue(argparse.Action):
        def __init__(self, option_strings, dest, heir=None, nargs=0, **kwargs):
            self.heir = heir
            super().__init__(option_strings, dest, nargs=0, **kwargs)

    def human_int(text):
        return int(text[:-1]) * 1000 if text.endswith("k") else int(text)

    def object_of(text):
        value = json.loads(text)
        if not isinstance(value, dict):
            raise argparse.ArgumentTypeError("no object")
        return value

    def dict_or_str(text):
        return json.loads(text) if text.startswith("{") else text

    def optional(of):
        def _optional(text):
            return None if text in ("", "None") else of(text)
        return _optional

    def add_flags(parser):
        parser.add_argument("model", nargs="?")
        parser.add_argument("--tp-size", "-tp", type=int, default=1)
        parser.add_argument("--memory", type=float)
        parser.add_argument("--length", type=human_int)
        parser.add_argument("--conf", type=json.loads)
        parser.add_argument("--object", type=object_of)
        parser.add_argument("--loader", type=dict_or_str)
        parser.add_argument("--count", type=optional(int))
        parser.add_argument("--backend", type=lambda s: s.lower().replace("-", "_"), choices=["x_y", "z"])
        parser.add_argument("--folder", type=pathlib.Path, default=pathlib.Path("."))
        parser.add_argument("--level", choices=[3, 1, 2], type=int, default=float("inf"))
        parser.add_argument("--names", nargs="+", default=["a"])
        parser.add_argument("--any", nargs="*")
        parser.add_argument("--pair", nargs=2)
        parser.add_argument("--peer", action="append", nargs="+")
        parser.add_argument("--chunked", action=argparse.BooleanOptionalAction, default=True)
        parser.add_argument("--eager", action="store_true", help=argparse.SUPPRESS)
        parser.add_argument("--old", action=DeprecatedStoreTrue, heir="--new")
        parser.add_argument("--version", action="version", version="1")
        return parser
"""


def record(*names: str, arity: Any = 1, **more: Any) -> dict[str, Any]:
    return {"names": list(names), "arity": arity, **more}


WANTED = [
    record("--any", arity="*", type="str", kind="str"),
    record("--backend", type="<lambda>", choices=["x_y", "z"]),
    record("--chunked", "--no-chunked", arity=0, default=True, negatable=True),
    record("--conf", type="loads", kind="json"),
    record("--count", type="_optional", kind="int", literals=["", "None"]),
    record("--eager", arity=0, default=False),
    record("--folder", type="Path"),
    record("--length", type="human_int", kind="size"),
    record("--level", type="int", kind="int", choices=["1", "2", "3"]),
    record("--loader", type="dict_or_str", kind="json_or_text"),
    record("--memory", type="float", kind="float"),
    record("--names", arity="+", type="str", kind="str", default=["a"]),
    record("--object", type="object_of", kind="json_object"),
    record("--old", arity=0, deprecated=True, successor="--new"),
    record("--pair", arity=2, type="str", kind="str"),
    record("--peer", arity="+", type="str", kind="str", repeatable=True),
    record("--tp-size", "-tp", type="int", kind="int", default=1),
]


class Site:
    """A folder of Python packages, and an interpreter that sees it."""

    def __init__(self, folder: Path) -> None:
        self.packages = folder / "site"
        self.scripts = folder / "bin"
        self.packages.mkdir()
        self.scripts.mkdir()
        # A link of its own, so that the scripts beside it are this interpreter's.
        self.python = str(self.scripts / "python")
        os.symlink(sys.executable, self.python)

    def module(self, name: str, text: str, *, parser: bool = False) -> None:
        file = self.packages / (name.replace(".", "/") + ".py")
        file.parent.mkdir(exist_ok=True)
        file.write_text((dedent(PARSER) if parser else "") + dedent(text))

    def distribution(self, name: str, version: str, *, top_level: str = "", script: str = "") -> None:
        info = self.packages / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        (info / "top_level.txt").write_text(top_level + "\n")
        (info / "entry_points.txt").write_text(f"[console_scripts]\n{script}\n" if script else "")

    def script(self, name: str, text: str) -> None:
        file = self.scripts / name
        file.write_text(f"#!{self.python}\n" + dedent(text))
        file.chmod(0o755)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    made = Site(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(made.packages))
    monkeypatch.setenv("TOY_TRACES", str(tmp_path))
    made.distribution("toy-engine", "1.2+local", top_level="toy_engine", script="toy = toy_engine.cli:main")
    return made


def flags_of(document: dict[str, Any]) -> list[dict[str, Any]]:
    return [flag for flag in document["flags"] if flag["names"]]


# --- what is taken -----------------------------------------------------------------------------------------------


def test_a_parser_is_taken_whole_and_nothing_is_started(site: Site, tmp_path: Path) -> None:
    site.module(
        "toy_engine.server",
        """
        def leave_a_trace(name):
            pathlib.Path(__import__("os").environ["TOY_TRACES"], name).write_text("")

        atexit.register(leave_a_trace, "exit-handler")
        threading.Thread(target=time.sleep, args=(600,)).start()
        args = add_flags(argparse.ArgumentParser()).parse_args()
        leave_a_trace("started")
        """,
        parser=True,
    )
    began = time.monotonic()
    document = take_catalogue(site.python, SERVER)
    assert time.monotonic() - began < 60
    assert flags_of(document) == WANTED
    assert document["flags"][0] == {"names": [], "positional": "model", "arity": "?", "type": "str", "kind": "str"}
    assert (document["command"], document["version"]) == ("python3 -m toy_engine.server", "1.2")
    assert document["source"] == "toy-engine 1.2+local, its own parser"
    assert not list(tmp_path.glob("started")) + list(tmp_path.glob("exit-handler"))


def test_what_is_taken_is_a_catalogue_and_its_text_is_the_same_each_time(site: Site, tmp_path: Path) -> None:
    site.module("toy_engine.server", "add_flags(argparse.ArgumentParser()).parse_args()", parser=True)
    first, second = (catalogue_text(take_catalogue(site.python, SERVER)) for _ in range(2))
    assert first == second
    file = tmp_path / "toy.json"
    file.write_text(first)
    catalogue = read_catalogue(file)
    assert [flag.name for flag in catalogue.flags()] == [flag["names"][0] for flag in WANTED]
    assert json.loads(first)["schema"] == 1


def test_a_subcommand_of_a_console_script_is_followed(site: Site) -> None:
    site.module(
        "toy_engine.cli",
        """
        def main():
            parser = argparse.ArgumentParser()
            parser.add_argument("--outer")
            commands = parser.add_subparsers(dest="command")
            add_flags(commands.add_parser("serve"))
            commands.add_parser("bench").add_argument("--only-bench")
            parser.parse_args()
        """,
        parser=True,
    )
    site.script("toy", "from toy_engine.cli import main\nmain()")
    assert flags_of(take_catalogue(site.python, ("toy", "serve", "MODEL"))) == WANTED
    assert [flag["names"] for flag in take_catalogue(site.python, ("toy", "bench"))["flags"]] == [["--only-bench"]]
    assert take_catalogue(site.python, ("toy", "serve"))["version"] == "1.2"


def test_a_parser_that_only_looks_ahead_is_passed_by(site: Site) -> None:
    site.module(
        "toy_engine.server",
        """
        ahead = argparse.ArgumentParser(add_help=False)
        ahead.add_argument("--config")
        ahead.parse_known_args()
        add_flags(argparse.ArgumentParser()).parse_known_args()
        raise SystemExit("went on")
        """,
        parser=True,
    )
    assert flags_of(take_catalogue(site.python, SERVER)) == WANTED


def test_a_parser_that_reads_underscores_as_dashes_is_noticed(site: Site) -> None:
    text = """
        class Flexible(argparse.ArgumentParser):
            def parse_args(self, args=None, namespace=None):
                args = __import__("sys").argv[1:] if args is None else args
                return super().parse_args([a.replace("_", "-") if a.startswith("--") else a for a in args])
        Flexible().parse_args() if {flexible} else argparse.ArgumentParser().parse_args()
    """
    site.module("toy_engine.server", text.format(flexible=True), parser=True)
    assert take_catalogue(site.python, SERVER)["underscores"] is True
    site.module("toy_engine.other", text.format(flexible=False), parser=True)
    assert "underscores" not in take_catalogue(site.python, ("@python", "-m", "toy_engine.other"))


def test_modules_of_the_program_are_not_shadowed_by_ours(site: Site) -> None:
    site.module("records", "NAMES = ['--mine']")
    site.module("toy_engine.server", "import records\np.add_argument(*records.NAMES)\np.parse_args()")
    file = site.packages / "toy_engine" / "server.py"
    file.write_text("import argparse\np = argparse.ArgumentParser()\n" + file.read_text())
    assert [flag["names"] for flag in take_catalogue(site.python, SERVER)["flags"]] == [["--mine"]]


def test_a_type_that_hangs_costs_only_the_kinds_of_values(site: Site) -> None:
    site.module(
        "toy_engine.server",
        """
        p = argparse.ArgumentParser()
        p.add_argument("--a", type=lambda text: time.sleep(600))
        p.add_argument("--b", type=int)
        p.parse_args()
        """,
        parser=True,
    )
    document = take_catalogue(site.python, SERVER, timeout_s=5)
    assert document["flags"] == [record("--a", type="<lambda>"), record("--b", type="int")]


def test_the_version_is_that_of_the_named_distribution_else_of_what_brought_the_program(site: Site) -> None:
    site.module("toy_engine.server", "argparse.ArgumentParser().parse_args()", parser=True)
    site.distribution("toy-engine-gpu", "7.0")
    taken = take_catalogue(site.python, SERVER, distributions=("absent", "toy-engine-gpu"))
    assert (taken["version"], taken["source"]) == ("7.0", "toy-engine-gpu 7.0, its own parser")
    assert take_catalogue(site.python, SERVER, version="9.9")["version"] == "9.9"
    site.module("nobodys", "argparse.ArgumentParser().parse_args()", parser=True)
    with pytest.raises(SpecError, match=r"no installed distribution says the version .*--as VERSION"):
        take_catalogue(site.python, ("@python", "-m", "nobodys"))


# --- what goes wrong ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import missing_module_x", r"failed before .*: ModuleNotFoundError: No module named 'missing_module_x'"),
        ("raise ValueError('two\\nlines')", r"failed before .*: ValueError: two lines"),
        ("1 +", r"failed before .*: SyntaxError"),
        ("print('hello')", r"ended and asked no argparse parser$"),
        ("raise SystemExit('no GPU found')", r"ended and asked no argparse parser: no GPU found"),
        ("import sys; print('bad luck', file=sys.stderr); sys.exit(3)", r"asked no argparse parser: bad luck"),
        ("import os; os.write(2, b'terminate called\\n'); os.abort()", r"signal 6, after 'terminate called'"),
        ("import os; os._exit(5)", r"did not get to its argument parser: it ended with exit code 5"),
    ],
)
def test_a_program_that_reaches_no_parser_is_one_clear_line(site: Site, text: str, message: str) -> None:
    site.module("toy_engine.server", text)
    with pytest.raises(RunError, match=message) as caught:
        take_catalogue(site.python, SERVER)
    assert "\n" not in str(caught.value)
    assert "'python3 -m toy_engine.server'" in str(caught.value)


def test_a_program_that_hangs_is_ended_with_all_that_it_started(site: Site, tmp_path: Path) -> None:
    site.module(
        "toy_engine.server",
        """
        import os, pathlib, subprocess, sys, time
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        pathlib.Path(os.environ["TOY_TRACES"], "pid").write_text(str(child.pid))
        time.sleep(600)
        """,
    )
    began = time.monotonic()
    with pytest.raises(RunError, match=r"did not get to its argument parser: it took longer than 2 s"):
        take_catalogue(site.python, SERVER, timeout_s=2)
    assert time.monotonic() - began < 30
    pid = int((tmp_path / "pid").read_text())
    deadline = time.monotonic() + 10
    while _is_running(pid):
        assert time.monotonic() < deadline, "the program's child is still there"
        time.sleep(0.02)


def _is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


@pytest.mark.parametrize("program", [("@python", "-m", "not_there.server"), ("no-such-script",), ("@python", "x.py")])
def test_a_program_that_is_not_installed_is_an_error_naming_program_and_interpreter(
    site: Site, program: tuple[str, ...]
) -> None:
    assert not is_installed(site.python, program)
    with pytest.raises(SpecError, match=r"is not installed for '.*/bin/python'"):
        take_catalogue(site.python, program)


def test_a_script_that_is_no_python_program_is_an_error(site: Site) -> None:
    site.script("toy", "")
    (site.scripts / "toy").write_text("#!/bin/sh\nexit 0\n")
    with pytest.raises(RunError, match=r"bin/toy is no Python program"):
        take_catalogue(site.python, ("toy",))


@pytest.mark.parametrize(
    ("python", "message"),
    [("/no/such/python", "is not there or cannot be executed"), ("/bin/true", "a Python of version 3.8 or newer")],
)
def test_what_is_no_interpreter_is_an_error(python: str, message: str) -> None:
    with pytest.raises(DisaggError, match=message):
        take_catalogue(python, SERVER)
    with pytest.raises(DisaggError, match=message):
        is_installed(python, SERVER)


# --- comparing ---------------------------------------------------------------------------------------------------


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


# --- the command -------------------------------------------------------------------------------------------------


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
        (["--engine", "a-disagg", "--output", "/no/such/dir/x"], SpecError, r"cannot be written: No such file"),
    ],
)
def test_the_command_refuses_what_it_cannot_do_in_one_line(
    site: Site, engines: Callable[..., None], arguments: list[str], error: type[DisaggError], message: str
) -> None:
    engines(a_disagg=SERVER, b_disagg=SERVER)
    with pytest.raises(error, match=message):
        invoke("--python", site.python, *arguments)
