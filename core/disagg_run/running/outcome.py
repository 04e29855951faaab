"""How processes and runs end, as records."""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping
from typing import Any

import attrs

from disagg_run.errors import DisaggError, RunError
from disagg_run.spec.model import as_tuple

#: What a failure that is nobody's exit is blamed on.
AGENT, GUARDIAN, RUN = "agent", "guardian", "run"

#: Exit codes of a run that a signal ended. SIGHUP comes where a terminal is closed or its connection is lost.
SIGNAL_CODES = {signal.SIGHUP: 129, signal.SIGINT: 130, signal.SIGTERM: 143}

_MAX_LINE = 500


@attrs.frozen(kw_only=True)
class Failure:
    """One thing that went wrong, as it is told to every rank and written down."""

    #: Rank on which it happened.
    rank: int
    #: Process name, or ``agent``, ``guardian``, ``run``.
    process: str
    #: One lower-case sentence.
    message: str
    #: Exit code of every rank of the run (errors.py).
    exit_code: int = RunError.exit_code
    #: The process's own exit code; None where it did not exit.
    code: int | None = None
    #: Signal that ended the process: ``SIGKILL``; "" where none did.
    signal: str = ""
    #: Last lines of its log.
    lines: tuple[str, ...] = attrs.field(default=(), converter=as_tuple)
    #: Path of the whole log.
    log: str = ""
    #: Seconds since the epoch.
    time: float = attrs.field(factory=time.time)

    def to_data(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {**attrs.asdict(self), "lines": [line[:_MAX_LINE] for line in self.lines]}

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Failure:
        """Back from plain data; unknown keys are ignored, so that versions can differ by a field."""
        names = {field.name for field in attrs.fields(cls)}
        return cls(**{key: value for key, value in data.items() if key in names})

    @classmethod
    def of(cls, error: DisaggError, *, rank: int, process: str = RUN) -> Failure:
        """The failure that an error stands for."""
        return cls(rank=rank, process=process, message=str(error), exit_code=error.exit_code)


@attrs.frozen(kw_only=True)
class Exit:
    """How a process ended."""

    #: Exit code; None where a signal ended it.
    code: int | None = None
    #: Number of the signal; 0 where it exited.
    signum: int = 0

    @property
    def signal(self) -> str:
        """``SIGKILL``; "" where the process exited by itself."""
        return signal_name(self.signum) if self.signum else ""

    def __str__(self) -> str:
        return f"was killed by {self.signal}" if self.signum else f"exited with code {self.code}"


def heeded() -> tuple[signal.Signals, ...]:
    """The signals that end a run in order: not SIGHUP where it was ignored from the start, as nohup has it."""
    return tuple(
        signum for signum in SIGNAL_CODES if signum != signal.SIGHUP or signal.getsignal(signum) is not signal.SIG_IGN
    )


def signal_name(number: int) -> str:
    """``SIGKILL`` for 9; real-time signals by number."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
