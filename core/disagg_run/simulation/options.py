"""The options of every stand-in: delays and faults, given before the ``--`` that starts the plan's own argv."""

from __future__ import annotations

import argparse
import os
import shlex
import signal
from collections.abc import Sequence
from typing import Literal

import attrs

#: Options for all stand-ins of an environment, as shell words; those on the command line win.
VARIABLE = "DISAGG_SIMULATION_OPTIONS"


@attrs.frozen(kw_only=True)
class Options:
    """Delays and faults of one stand-in."""

    #: Seconds that loading the model takes; HTTP is not open before.
    load_s: float = 0.2
    #: Seconds of warm-up after loading, in which an engine that has such a phase answers 503 to health checks.
    slow_start_s: float = 0.0
    #: Seconds from a request to its first token (a prefill).
    ttft_s: float = 0.02
    #: Seconds between tokens.
    tpot_s: float = 0.002
    #: Seconds that a KV transfer takes.
    transfer_s: float = 0.0
    #: Seconds until a server gives up waiting for its peer's part of a request.
    peer_timeout_s: float = 30.0
    #: Seconds until the nodes of one worker give up waiting for each other.
    join_timeout_s: float = 600.0
    #: Seconds that a router waits for its workers beyond the time that its own flags give them.
    startup_grace_s: float = 60.0
    #: Version whose catalogue is the parser; "" = the newest that the plugin has.
    catalogue_version: str = ""
    #: Loading never ends.
    never_ready: bool = False
    #: What the ``after`` times count from: start of the process, or the end of loading.
    clock: Literal["start", "ready"] = "start"
    #: Exit by itself after so many seconds, with ``exit_code``.
    exit_after_s: float | None = None
    exit_code: int = 1
    #: Send ``signal`` to itself after so many seconds.
    signal_after_s: float | None = None
    signal: int = int(signal.SIGKILL)
    #: Stop answering after so many seconds, but stay alive with all ports open.
    wedge_after_s: float | None = None
    #: Ignore SIGTERM.
    ignore_term: bool = False
    #: Seconds between SIGTERM and the end of the process.
    term_s: float = 0.0
    #: Answer each so many-th generation with an error; 0 = none.
    fail_every: int = 0
    #: Megabytes a second of log lines on stdout.
    log_flood_mb_s: float = 0.0


def split_words(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The stand-in's own words and the plan's argv, which the first ``--`` parts."""
    words = list(words)
    if "--" not in words:
        return words, []
    cut = words.index("--")
    return words[:cut], words[cut + 1 :]


def parse_options(words: Sequence[str], *, prog: str, about: str) -> Options:
    """Options from ``words``, over those of the variable; exits with 2 on what is no option, 0 after ``--help``."""
    parser = _parser(prog, about)
    preset = shlex.split(os.environ.get(VARIABLE, ""))
    found = vars(parser.parse_args([*preset, *words]))
    return Options(**{name: value for name, value in found.items() if value is not None})


def _signal_number(text: str) -> int:
    name = text.upper() if text.upper().startswith("SIG") else f"SIG{text.upper()}"
    try:
        return int(signal.Signals(int(text))) if text.isdecimal() else int(signal.Signals[name])
    except (KeyError, ValueError):
        raise argparse.ArgumentTypeError(f"unknown signal {text!r}") from None


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 <= value < 1e9:
        raise argparse.ArgumentTypeError(f"not a time in seconds: {text!r}")
    return value


_seconds.__name__ = "seconds"


def _parser(prog: str, about: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=prog,
        usage=f"{prog} [options] -- ARGV…",
        description=f"{about} ARGV is the command that it stands for.",
        epilog=f"The variable {VARIABLE} may hold options too; those on the command line win.",
        allow_abbrev=False,
    )
    delays = parser.add_argument_group("delays")
    for name, about_it in {
        "--load-s": "seconds that loading the model takes (default 0.2)",
        "--slow-start-s": "seconds of warm-up after loading, answering 503 where the engine does (default 0)",
        "--ttft-s": "seconds from a request to its first token (default 0.02)",
        "--tpot-s": "seconds between tokens (default 0.002)",
        "--transfer-s": "seconds that a KV transfer takes (default 0)",
        "--peer-timeout-s": "seconds until waiting for the peer's part of a request is given up (default 30)",
        "--join-timeout-s": "seconds until the nodes of a worker give up waiting for each other (default 600)",
        "--startup-grace-s": "seconds that a router waits for workers beyond its own flags' time (default 60)",
        "--term-s": "seconds between SIGTERM and the end (default 0)",
    }.items():
        delays.add_argument(name, type=_seconds, metavar="S", help=about_it)
    faults = parser.add_argument_group("faults")
    faults.add_argument("--never-ready", action="store_true", default=None, help="loading never ends")
    faults.add_argument("--exit-after-s", type=_seconds, metavar="S", help="exit by itself after S seconds")
    faults.add_argument("--exit-code", type=int, metavar="N", help="its exit code then (default 1)")
    faults.add_argument("--signal-after-s", type=_seconds, metavar="S", help="send itself a signal after S seconds")
    faults.add_argument("--signal", type=_signal_number, metavar="NAME", help="that signal (default KILL)")
    faults.add_argument("--wedge-after-s", type=_seconds, metavar="S", help="answer nothing more after S seconds")
    faults.add_argument(
        "--clock", choices=("start", "ready"), help="what the times above count from (default: start of the process)"
    )
    faults.add_argument("--ignore-term", action="store_true", default=None, help="ignore SIGTERM")
    faults.add_argument("--fail-every", type=int, metavar="N", help="answer each N-th generation with status 500")
    faults.add_argument("--log-flood-mb-s", type=float, metavar="MB", help="megabytes of log lines a second")
    parser.add_argument("--catalogue-version", metavar="V", help="engine version whose parser is used")
    return parser
