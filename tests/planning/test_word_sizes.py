"""Arguments and variables that Linux starts no program with."""

from __future__ import annotations

import subprocess

import pytest

from disagg_run import ArgText, RoleSpec, SpecError, plan
from disagg_run.planning.word_sizes import MOST_BYTES
from tests.planning.toy import HOST, Site, spec, toy_host


def test_the_bound_is_that_of_this_very_system() -> None:
    assert subprocess.run(["true", "x" * MOST_BYTES], check=False).returncode == 0
    with pytest.raises(OSError, match="Argument list too long"):
        subprocess.run(["true", "x" * (MOST_BYTES + 1)], check=False)


@pytest.mark.parametrize("letter", ["x", "é"])
def test_a_variable_that_is_too_long_is_refused_and_the_longest_is_not(letter: str) -> None:
    room = (MOST_BYTES - len("BIG=")) // len(letter.encode())
    plan(spec(env={"BIG": letter * room}), host=HOST)
    with pytest.raises(SpecError, match=r"variable BIG of decode-0 \(Python LaunchSpec\) has \d+ bytes, more than"):
        plan(spec(decode=RoleSpec(env={"BIG": letter * (room + 1)})), host=HOST)


def test_an_argument_that_is_too_long_is_refused_and_the_longest_is_not() -> None:
    plan(spec(args=[ArgText(words=["--text", "x" * MOST_BYTES])]), host=HOST)
    with pytest.raises(SpecError, match=r"--text of prefill-0 \(Python\) has 131072 bytes, more than the 131071"):
        plan(spec(args=[ArgText(words=["--text", "x" * (MOST_BYTES + 1)])]), host=HOST)


def test_a_plugins_own_variable_is_held_to_the_bound_too() -> None:
    with pytest.raises(SpecError, match=r"the variable WIDE of prefill-0 .*plugin wide"):
        plan(spec(), host=toy_host(Site("wide", env={"WIDE": "x" * MOST_BYTES})))
