"""Taking catalogues from toy programs, each run by a real interpreter of its own."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from disagg_run.catalogue import read_catalogue
from disagg_run.catalogue_taking import catalogue_text, is_installed, take_catalogue
from disagg_run.errors import DisaggError, RunError, SpecError
from tests.toy_site import SERVER, WANTED, Site, flags_of, record, toy_site


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    return toy_site(tmp_path, monkeypatch)


# --- what is taken ----------------------------------------------------------------------------------------------------


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


def test_the_suffixes_of_sizes_are_those_that_the_parser_takes(site: Site) -> None:
    site.module(
        "toy_engine.server",
        """
        def size(text):
            for suffix, factor in (("k", 1000), ("Ki", 1024)):
                if text.endswith(suffix):
                    return int(text[: -len(suffix)]) * factor
            return int(text)
        p = argparse.ArgumentParser()
        p.add_argument("--length", type=size)
        p.parse_args()
        """,
        parser=True,
    )
    document = take_catalogue(site.python, SERVER)
    assert [flag["kind"] for flag in document["flags"]] == ["size"]
    assert document["suffixes"] == {"k": 1000, "Ki": 1024}


def test_modules_of_the_program_are_not_shadowed_by_ours(site: Site) -> None:
    site.module("records", "NAMES = ['--mine']")
    site.module("toy_engine.server", "import records\np.add_argument(*records.NAMES)\np.parse_args()")
    file = site.packages / "toy_engine" / "server.py"
    file.write_text("import argparse\np = argparse.ArgumentParser()\n" + file.read_text())
    assert [flag["names"] for flag in take_catalogue(site.python, SERVER)["flags"]] == [["--mine"]]


@pytest.mark.real
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


# --- what goes wrong --------------------------------------------------------------------------------------------------


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


@pytest.mark.real
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
