"""The public names as a typed program outside sees them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import disagg_run

HERE = Path(__file__).parent
SCRIPT = HERE / "plan_by_program.py"
DOOR = HERE.parent / "door"


def strict(tmp_path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """mypy in strict mode, without our settings, on files that are no part of our tree."""
    argv = [sys.executable, "-m", "mypy", "--strict", "--config-file=", f"--cache-dir={tmp_path / 'cache'}", *words]
    environment = {name: value for name, value in os.environ.items() if name != "MYPYPATH"}
    return subprocess.run(argv, cwd=tmp_path, env=environment, capture_output=True, text=True)


def test_the_script_plans_changes_writes_and_reads(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, str(SCRIPT)], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"\d+\.\d+\.\d+ [a-z-]+ sha256:[0-9a-f]{64}\n", done.stdout)
    assert done.stderr.count("\n") == 1
    assert "did you mean" in done.stderr


@pytest.mark.real
def test_the_script_and_the_outside_plugins_are_typed_in_strict_mode(tmp_path: Path) -> None:
    shutil.copy(SCRIPT, tmp_path)
    shutil.copytree(DOOR / "toy-disagg" / "toy_disagg", tmp_path / "toy_disagg")
    for name in ("toy-link/toy_link.py", "rack-site/rack_site.py"):
        shutil.copy(DOOR / name, tmp_path)
    wrong = tmp_path / "wrong.py"
    wrong.write_text(
        "from disagg_run import LaunchSpec, plan\n"
        "plan(LaunchSpec(engine='toy-disagg', model=7)).process('router').argv.append('--flag')\n",
        encoding="utf-8",
    )
    done = strict(tmp_path, ".")
    # The wrong file shows that our types are seen at all.
    complaints = [line for line in done.stdout.splitlines() if ": error: " in line]
    assert {line.partition(":")[0] for line in complaints} == {"wrong.py"}, done.stdout
    assert len(complaints) == 2
    assert any('"model" to "LaunchSpec" has incompatible type "int"' in line for line in complaints)
    assert any('"tuple[str, ...]" has no attribute "append"' in line for line in complaints)


@pytest.mark.parametrize("name", disagg_run.__all__)
def test_each_public_name_is_there_and_documented(name: str) -> None:
    item = getattr(disagg_run, name)
    assert item.__doc__
    assert disagg_run.__dict__[name] is item


def test_the_script_uses_public_names_only() -> None:
    text = SCRIPT.read_text(encoding="utf-8")
    assert re.findall(r"^(?:from|import) (disagg_run\S*)", text, re.MULTILINE) == ["disagg_run", "disagg_run"]
    assert set(re.findall(r"disagg_run\.(\w+)", text)) <= {*disagg_run.__all__, "__version__"}
