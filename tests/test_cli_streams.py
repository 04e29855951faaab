"""What the real command does where its output cannot be written, has no reader, or holds bytes that are no text."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from disagg_run import LaunchPlan
from tests.command_line import ASKED, refused


def test_a_reader_that_goes_away_is_no_error() -> None:
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "disagg_run", *ASKED, "--format", "json"]
    ended = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    os.close(write)
    assert ended.stderr == ""
    assert ended.returncode == 141


@pytest.mark.parametrize(("arguments", "code"), [(["--bad"], 2), (["engines", "nope"], 3), (ASKED, 141)])
def test_an_error_that_nobody_reads_keeps_its_exit_code(arguments: list[str], code: int) -> None:
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "disagg_run", *arguments]
    ended = subprocess.run(command, stdout=write, stderr=write, timeout=60, check=False)
    os.close(write)
    assert ended.returncode == code


@pytest.mark.parametrize("arguments", [["--help"], [*ASKED, "--format", "json"]])
def test_output_that_cannot_be_written_is_one_line(arguments: list[str]) -> None:
    command = [sys.executable, "-m", "disagg_run", *arguments]
    with open("/dev/full", "w") as full:
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert ended.returncode in (1, 2)
    assert ended.stderr.count("\n") == 1
    assert "no space left on device" in ended.stderr


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ASKED, [*ASKED[1:], "--simulate"], ["engines"]])
def test_a_closed_stdout_is_one_line_and_a_closed_stderr_is_silence(arguments: list[str]) -> None:
    def ended(closed: str) -> subprocess.CompletedProcess[str]:
        script = f'exec "$0" -m disagg_run "$@" {closed}'
        command = ["bash", "-c", script, sys.executable, *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    without = ended(">&-")
    assert without.returncode >= 1
    assert without.stderr.count("\n") == 1
    assert "bad file descriptor" in without.stderr
    assert ended(">&- 2>&-").returncode >= 1


def test_an_error_never_goes_to_stdout_where_stderr_is_closed() -> None:
    command = ["bash", "-c", 'exec "$0" -m disagg_run plan --engine nope 2>&- <&-', sys.executable]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.stdout, ended.stderr, ended.returncode) == ("", "", 3)


def test_ctrl_c_while_modules_are_imported_leaves_no_traceback() -> None:
    code = """
import os, signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job would ignore it
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "click":
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(30)
sys.meta_path.insert(0, Finder())
from disagg_run.cli.start import entry
entry()
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=20, check=False)
    assert (ended.returncode, ended.stderr) == (-signal.SIGINT, "")


def test_bytes_that_are_no_text_pass_through_the_plan_and_its_script() -> None:
    value = "A=a\udcff b"
    assert (
        LaunchPlan.from_json(output_of("--env", value, "--format", "json")).process("prefill-0").env["A"] == "a\udcff b"
    )
    assert b"A='a\xff b'" in output_of("--env", value, "--format", "shell", "--rank", "0")
    assert b"rank 0" in output_of("--env", value)
    assert "YAML takes only text" in refused(*ASKED, "--env", value, "--format", "yaml", code=5)


def output_of(*arguments: str) -> bytes:
    command = [sys.executable, "-m", "disagg_run", *ASKED, *arguments]
    return subprocess.run(command, capture_output=True, timeout=60, check=True).stdout
