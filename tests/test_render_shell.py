"""One process as shell text: any argv and environment reaches the real child unchanged."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from disagg_run.errors import PlanError
from disagg_run.planning.document import PlannedProcess
from disagg_run.render import render_process_shell, render_shell
from disagg_run.running.environment import process_environment
from tests.planned import elements, launch, names, path_names, process, values

#: What a child got from execve, without any interpretation.
DUMP = """
import json, sys
def given(name):
    return open(f"/proc/self/{name}", "rb").read().decode("latin-1").split("\\0")[:-1]
json.dump({"env": given("environ"), "argv": given("cmdline")}, sys.stdout)
"""

CHILD = (sys.executable, "-I", "-S", "-c", DUMP)

#: Bash's own: it sets them in every process that it starts.
OF_BASH = {"_", "SHLVL", "PWD", "OLDPWD"}


def started(script: str, inherited: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
    """argv and environment of the process that the script becomes."""
    done = subprocess.run(
        ["/bin/bash", "-c", script], env=dict(inherited), capture_output=True, timeout=30, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    seen = json.loads(done.stdout)
    words = [os.fsdecode(word.encode("latin-1")) for word in seen["argv"]]
    pairs = [os.fsdecode(pair.encode("latin-1")).partition("=") for pair in seen["env"]]
    return words, {name: value for name, _, value in pairs}


@pytest.mark.timeout(900)  # 2,000 pairs of real processes in CI
@given(
    words=st.lists(values, max_size=5),
    env=st.dictionaries(names | path_names, values, max_size=4),
    prepend=st.dictionaries(path_names, elements, max_size=2),
    append=st.dictionaries(path_names, elements, max_size=2),
    unset=st.lists(path_names, max_size=2, unique=True),
    inherited=st.dictionaries(path_names, values, max_size=4),
)
@example(words=['{"a": "it\'s $HOME"}', "-", "--", "\n"], env={}, prepend={}, append={}, unset=[], inherited={})
@example(words=[], env={}, prepend={}, append={"TOY_PATH": []}, unset=[], inherited={"TOY_PATH": ":"})
def test_any_argv_and_environment_reaches_a_real_child_unchanged(
    words: list[str],
    env: dict[str, str],
    prepend: dict[str, list[str]],
    append: dict[str, list[str]],
    unset: list[str],
    inherited: dict[str, str],
) -> None:
    planned = process(
        argv=[*CHILD, *words],
        env=env,
        env_prepend={name: tuple(parts) for name, parts in prepend.items()},
        env_append={name: tuple(parts) for name, parts in append.items()},
        unset=unset,
    )
    around = {"PATH": os.defpath, **inherited}
    argv, got = started(render_process_shell(planned), around)
    assert argv == list(planned.argv)
    wanted = process_environment(planned, around)
    mine = OF_BASH - set(env)
    assert {name: value for name, value in got.items() if name not in mine} == wanted


def test_extended_paths_never_have_an_empty_element() -> None:
    """Fault R19: LD_LIBRARY_PATH and PYTHONPATH ended in ``:``, which is the current directory."""
    planned = process(
        argv=CHILD, env_prepend={"A": ("/x", "/y"), "B": ("/x",)}, env_append={"A": ("/z",), "C": ("/z",), "D": ("/z",)}
    )
    around = {"PATH": os.defpath, "A": ":/old::/er:", "B": "", "D": "/old"}
    _, got = started(render_process_shell(planned), around)
    assert {name: got[name] for name in "ABCD"} == {"A": "/x:/y:/old:/er:/z", "B": "/x", "C": "/z", "D": "/old:/z"}


def test_a_program_with_an_equals_sign_in_its_name_is_started(tmp_path: Path) -> None:
    program = tmp_path / "a=b"
    program.write_text("#!/bin/sh\nexec " + sys.executable + ' -I -S "$@"\n')
    program.chmod(0o755)
    argv, got = started(render_process_shell(process(argv=[str(program), "-c", DUMP, "x"], env={"A": "1"})), os.environ)
    assert argv[-2:] == [DUMP, "x"]
    assert got["A"] == "1"


def test_a_missing_secret_stops_the_script_before_anything_starts_and_its_value_is_never_written() -> None:
    planned = process(argv=CHILD, secrets=["TOY_TOKEN"])
    script = render_process_shell(planned)
    for given_env in ({"PATH": os.defpath}, {"PATH": os.defpath, "TOY_TOKEN": ""}):
        done = subprocess.run(["bash", "-c", script], env=given_env, capture_output=True, text=True, check=False)
        assert done.returncode != 0
        assert "TOY_TOKEN: prefill-0 needs it from the environment" in done.stderr
        assert done.stdout == ""
    assert started(script, {"PATH": os.defpath, "TOY_TOKEN": "s3cret"})[1]["TOY_TOKEN"] == "s3cret"
    assert "eval" not in script


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        (process(argv=["toy", "a\0b"]), "is given a NUL character in 'a\\x00b'"),
        (process(env={"A": "\0"}), "is given a NUL character"),
        (process(env_prepend={"A": ("\0",)}), "is given a NUL character"),
        (process(argv=["\ud800"]), "which is no text"),
        (process(env={"A;rm": "1"}), "'A;rm' of prefill-0 is no variable name"),
        (process(secrets=["A}$(id)"]), "is no variable name"),
        (process(unset=["A\n"]), "is no variable name"),
        (process(argv=[]), "prefill-0 has no command"),
    ],
)
def test_what_no_process_can_be_given_is_refused(broken: PlannedProcess, words: str) -> None:
    for render in (render_process_shell, lambda each: render_shell(launch([each]), 0)):
        with pytest.raises(PlanError) as caught:
            render(broken)
        assert words in str(caught.value)
