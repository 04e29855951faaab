"""The door, proved with plugins that are not ours: real wheels in a virtual environment of their own, beside ours."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import pytest

SOURCES = Path(__file__).parent
DISTRIBUTIONS = ("toy-disagg", "toy-link", "rack-site")


@attrs.frozen
class Door:
    """An environment in which disagg-run and the outside plugins are installed."""

    python: Path

    def run(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """``disagg-run`` with ``words``."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("DISAGG_RUN_")}
        argv = [str(self.python), "-m", "disagg_run", *words]
        return subprocess.run(
            argv, env={**inherited, **environment}, cwd=self.python.parent, capture_output=True, text=True, timeout=60
        )

    def plan(self, *words: str) -> Any:
        """The plan document for the toy engine."""
        done = self.run("plan", "--engine", "toy-disagg", "--model", "toy-model", "--format", "json", *words)
        assert (done.returncode, done.stderr) == (0, "")
        return json.loads(done.stdout)

    def refusal(self, *words: str, **environment: str) -> tuple[int, str]:
        """Exit code and the one line that a refused plan gives."""
        done = self.run("plan", "--engine", "toy-disagg", "--model", "toy-model", *words, **environment)
        assert done.stdout == ""
        assert done.stderr.count("\n") == 1, done.stderr
        return done.returncode, done.stderr.removeprefix("disagg-run: error: ").rstrip()


@pytest.fixture(scope="session")
def door(tmp_path_factory: pytest.TempPathFactory) -> Door:
    """Wheels built from the source trees beside this file, installed by pip.

    What this environment has (disagg-run, as a wheel or from the tree, and what it depends on) is seen from there by a
    ``.pth`` file, so that no test depends on the network; ``test_from_scratch`` installs all of it anew.
    """
    root = tmp_path_factory.mktemp("door")
    for name in DISTRIBUTIONS:
        build(SOURCES / name, root / "wheels")
    python = new_environment(root / "venv", "--without-pip")
    where = [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    packages = subprocess.run(where, check=True, capture_output=True, text=True).stdout.strip()
    ours = f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n"
    (Path(packages) / "beside.pth").write_text(ours, encoding="utf-8")
    wheels = sorted((root / "wheels").glob("*.whl"))
    pip(Path(sys.executable), "--no-deps", "--no-index", "--target", packages, *map(str, wheels))
    return Door(python)


def build(source: Path, out: Path) -> None:
    """A wheel, made by the backend as pip and build call it."""
    out.mkdir(exist_ok=True)
    program = "import sys; from hatchling.build import build_wheel; build_wheel(sys.argv[1])"
    subprocess.run([sys.executable, "-c", program, str(out)], cwd=source, check=True)


def new_environment(where: Path, *options: str) -> Path:
    subprocess.run([sys.executable, "-m", "venv", *options, str(where)], check=True)
    return where / "bin" / "python"


def pip(python: Path, *words: str) -> None:
    environment = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    subprocess.run([str(python), "-m", "pip", "install", "-q", *words], check=True, env=environment)


def processes(plan: Mapping[str, Any]) -> dict[str, Any]:
    return {
        process["name"]: process for rank in plan["ranks"] for group in rank["groups"] for process in group["processes"]
    }


def test_the_outside_engine_is_a_file_of_under_a_hundred_lines() -> None:
    assert len((SOURCES / "toy-disagg" / "toy_disagg" / "plugin.py").read_text().splitlines()) < 100


def test_outside_plugins_are_listed_beside_ours_with_their_distributions(door: Door) -> None:
    done = door.run("engines", "--format", "json")
    assert (done.returncode, done.stderr) == (0, "")
    found = {
        each["name"]: (each["kind"], each["distribution"], each["version"])
        for each in json.loads(done.stdout)["plugins"]
    }
    assert found["toy-disagg"] == ("engine", "toy-disagg-plugin", "1.0.0")
    assert found["toy-link"] == ("connector", "toy-link-plugin", "0.3.0")
    assert found["rack-site"] == ("site", "rack-site-plugin", "2026.1")
    assert "disagg-run" in {distribution for _, distribution, _ in found.values()}


def test_one_outside_engine_is_shown_with_its_settings(door: Door) -> None:
    shown = door.run("engines", "toy-disagg").stdout
    assert "toy-link (default)" in shown
    assert "block_size  int    tokens of a KV block" in shown


def test_a_plan_merges_engine_connector_and_site(door: Door) -> None:
    plan = door.plan("--prefill", "2")
    assert [each["name"] for each in plan["plugins"]] == ["rack-site", "toy-disagg", "toy-link"]
    assert plan["engine_version"] == "1.2.0"
    found = processes(plan)
    assert list(found) == ["prefill-0", "router", "prefill-1", "decode-0"]
    assert found["prefill-0"]["argv"] == [
        "toy-server",
        "/models/toy-model",
        *("--served-model-name", "toy-model"),
        *("--tp-size", "4"),
        *("--host", "0.0.0.0"),
        *("--port", "8000"),
        *("--kv-config", '{"role":"producer","handshake_port":6301}'),
    ]
    assert found["router"]["argv"] == [
        "toy-router",
        *("--port", "30000"),
        *("--prefill", "http://192.0.2.1:8000"),
        *("--prefill", "http://192.0.2.2:8000"),
        *("--decode", "http://192.0.2.3:8000"),
    ]
    assert found["decode-0"]["env"] == {"RACK_RANK": "2"}
    assert found["decode-0"]["env_prepend"] == {"PATH": ["/opt/rack/bin"]}
    assert found["decode-0"]["ready"][0]["target"] == "http://192.0.2.3:8000/health"


def test_every_value_names_the_outside_plugin_that_set_it(door: Door, tmp_path: Path) -> None:
    door.plan("--set", "block_size=32", "--sources", str(tmp_path / "sources.json"))
    document = json.loads((tmp_path / "sources.json").read_text())
    values = {
        pointer.partition("/processes/0/")[2]: document["sources"][provenance[0][0]]
        for pointer, provenance in document["values"].items()
        if pointer.startswith("/ranks/0/groups/0/processes/0/")
    }
    assert values["argv/--port"] == "engine default (plugin toy-disagg)"
    assert values["argv/--tp-size"] == "model table (plugin toy-disagg)"
    assert values["argv/--kv-config/role"] == "connector (plugin toy-link)"
    assert values["env/RACK_RANK"] == "site plugin (plugin rack-site)"
    assert values["ports/handshake"] == "connector (plugin toy-link)"
    assert values["argv/--block-size"].startswith("command line --set")


def test_a_worker_of_the_outside_engine_may_span_nodes(door: Door) -> None:
    found = processes(door.plan("--decode-tp", "16"))
    follower = found["decode-0.1"]
    assert follower["argv"][4:10] == ["--tp-size", "16", "--nodes", "2", "--node-rank", "1"]
    assert follower["argv"][10:12] == ["--group", "192.0.2.2:20000"]
    assert follower["after"] == [{"process": "decode-0", "until": "started"}]
    assert "decode-0.1" not in {edge["process"] for edge in found["router"]["after"]}


def test_outside_catalogues_and_parity_are_checked_like_ours(door: Door) -> None:
    code, line = door.refusal("--prefill-args", "--block-sise 8")
    assert code == 5
    assert line == (
        "prefill: toy-server 1.2.0 has no flag '--block-sise' (command line --prefill-args): "
        "did you mean '--block-size'?"
    )
    code, line = door.refusal("--prefill-set", "block_size=8", "--decode-set", "block_size=32")
    assert code == 5
    assert "block-size is '8' for prefill-0" in line
    assert "KV moves block by block" in line


@pytest.mark.real
def test_the_same_inputs_give_the_same_bytes_under_two_hash_seeds(door: Door) -> None:
    words = ("plan", "--engine", "toy-disagg", "--model", "toy-model", "--format", "json")
    first, second = (door.run(*words, PYTHONHASHSEED=seed).stdout for seed in "12")
    assert first == second != ""


def test_a_plugin_can_be_switched_off(door: Door) -> None:
    done = door.run("engines", DISAGG_RUN_DISABLE="rack-site,toy-disagg")
    assert "toy-link" in done.stdout
    assert "rack-site" not in done.stdout
    code, line = door.refusal(DISAGG_RUN_DISABLE="toy-disagg")
    assert code == 3
    assert "engine 'toy-disagg' is disabled: take it out of DISAGG_RUN_DISABLE" in line


def test_the_outside_engine_keeps_the_contract(door: Door) -> None:
    program = "from disagg_run.testing import check_engine; check_engine('toy-disagg')"
    done = subprocess.run([str(door.python), "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.real
def test_the_outside_engine_runs_simulated_with_followers_and_kv_transfer(door: Door, tmp_path: Path) -> None:
    nodes = ",".join(f"127.77.1.{index}" for index in (1, 2, 3))
    words = ("--engine", "toy-disagg", "--model", "toy-model", "--decode-tp", "16", "--nodes", nodes)
    done = door.run(*words, "--simulate", "--smoke", "4", "--run-dir", str(tmp_path / "run"))
    assert done.returncode == 0, done.stderr
    assert "4 of 4 requests good" in done.stdout
    assert "[decode-0] " in done.stderr


PAGE = SOURCES.parents[1] / "docs" / "writing-a-plugin.md"


def commands_of_the_tutorial() -> list[tuple[list[str], list[str]]]:
    """Each command of the page with the lines that the page shows of its output."""
    console = re.search(r"```console\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert console is not None
    sessions = [session.splitlines() for session in console[1].removeprefix("$ ").split("\n$ ")]
    return [(shlex.split(session[0]), session[1:]) for session in sessions]


@pytest.mark.parametrize(("words", "lines"), commands_of_the_tutorial(), ids=lambda value: " ".join(value)[:60])
def test_the_tutorials_commands_print_what_it_shows(
    door: Door, tmp_path: Path, words: list[str], lines: list[str]
) -> None:
    assert words[0] == "disagg-run"
    if "--simulate" in words:
        words = [*words, "--nodes", "127.77.3.1,127.77.3.2", "--run-dir", str(tmp_path / "run")]
    done = door.run(*words[1:])
    assert lines
    for line in lines:
        assert line in done.stdout + done.stderr


def test_the_tutorials_tests_pass(door: Door, tmp_path: Path) -> None:
    example = re.search(r"<!-- example -->\n```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert example is not None
    (tmp_path / "test_example.py").write_text(example[1], encoding="utf-8")
    argv = [str(door.python), "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:hypothesispytest", "."]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert "3 passed" in done.stdout, done.stdout


@pytest.mark.real
def test_from_scratch(tmp_path: Path) -> None:
    """Nothing is shared with this environment: our wheel, its dependencies and the outside wheels, all by pip."""
    tree = SOURCES.parents[1]
    for source in (tree, *(SOURCES / name for name in DISTRIBUTIONS)):
        build(source, tmp_path / "wheels")
    python = new_environment(tmp_path / "venv")
    pip(python, *map(str, sorted((tmp_path / "wheels").glob("*.whl"))))
    plan = Door(python).plan("--prefill", "2")
    assert [each["name"] for each in plan["plugins"]] == ["rack-site", "toy-disagg", "toy-link"]
    assert list(processes(plan)) == ["prefill-0", "router", "prefill-1", "decode-0"]
