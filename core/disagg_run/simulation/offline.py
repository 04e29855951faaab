"""Runs a real program of a simulated launch, a Python module, so that it asks no host but those it is told.

    python3 -m disagg_run.simulation.offline MODULE WORD…

A router looks for the model's tokenizer at a public hub: on a machine without internet that takes time, and a
simulation is nobody's business outside. The process is replaced, so that pid and signals are the program's own.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence

#: First words of such a program in ``records.Simulation``; the module's name follows.
OFFLINE = ("@python", "-m", "disagg_run.simulation.offline")

#: For huggingface's libraries: Python's obey the first, those of Rust know the address alone. Nothing can listen on
#: port 0, so asking there fails at once.
_CLOSED = {"HF_HUB_OFFLINE": "1", "HF_ENDPOINT": "http://127.0.0.1:0"}

#: A proxy would take even a loopback address out of this machine.
_PROXIES = ("http_proxy", "https_proxy", "all_proxy")


def offline_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables of ``environ`` without what leads out of this machine."""
    return {**{name: text for name, text in environ.items() if name.lower() not in _PROXIES}, **_CLOSED}


def main(words: Sequence[str]) -> None:
    """Become the module that ``words`` name, with their rest as its arguments."""
    if not words:
        sys.exit("usage: python3 -m disagg_run.simulation.offline MODULE WORD…")
    os.execve(sys.executable, [sys.executable, "-m", *words], offline_environment(os.environ))


if __name__ == "__main__":
    main(sys.argv[1:])
