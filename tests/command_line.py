"""The real command as a process, and the one line with which it refuses."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

#: Words of a plan that is as short as can be.
ASKED = ["plan", "--engine", "atom-disagg", "--model", "DeepSeek-V4-Pro"]


def run(*arguments: str, cwd: Path | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
    """The ended command, in an environment of nothing but ``variables`` and what Python needs."""
    environ = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", **variables}
    if "PYTHONPATH" in os.environ:
        environ["PYTHONPATH"] = os.environ["PYTHONPATH"]
    command = [sys.executable, "-m", "disagg_run", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environ, cwd=cwd, timeout=60, check=False)


def refused(*arguments: str, code: int, cwd: Path | None = None, **variables: str) -> str:
    """The one line of a refusal, with its shape, exit code and silence on stdout checked."""
    ended = run(*arguments, cwd=cwd, **variables)
    assert "Traceback" not in ended.stderr
    assert ended.returncode == code, ended.stderr
    assert ended.stdout == ""
    (line,) = ended.stderr.splitlines()
    assert line.startswith("disagg-run: error: ")
    return line.removeprefix("disagg-run: error: ")
