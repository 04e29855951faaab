"""How a run ended: the first failure is the culprit, later ones are its consequences."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Mapping
from typing import Any

import attrs

from disagg_run.errors import DisaggError, RunError
from disagg_run.spec.model import as_tuple

#: What a failure that is nobody's exit is blamed on.
AGENT, GUARDIAN, RUN = "agent", "guardian", "run"

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


def signal_name(number: int) -> str:
    """``SIGKILL`` for 9; real-time signals by number."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


class Verdict:
    """Whether and how this rank's run has ended; the first word counts until rank 0 overrules it."""

    def __init__(self) -> None:
        self.culprit: Failure | None = None
        self.finished = False
        #: Failures after the first.
        self.consequences: list[Failure] = []
        #: Called once with the first failure of this rank, to tell the others.
        self.on_failure: Callable[[Failure], None] = lambda failure: None
        self._ended = asyncio.Event()

    @property
    def ended(self) -> bool:
        """Whether teardown may begin."""
        return self._ended.is_set()

    @property
    def exit_code(self) -> int:
        """0, or that of the culprit."""
        return self.culprit.exit_code if self.culprit else 0

    def fail(self, failure: Failure) -> None:
        """Record a failure; the first one ends the run."""
        if self.culprit is not None or self.finished:
            self.consequences.append(failure)
            return
        self.culprit = failure
        self._ended.set()
        self.on_failure(failure)

    def overrule(self, culprit: Failure | None) -> None:
        """Take rank 0's word for how the run ended: None = in order."""
        if culprit is not None:
            own = self.culprit
            if own is not None and (own.rank, own.process) != (culprit.rank, culprit.process):
                self.consequences.append(own)
            self.culprit = culprit
        elif self.culprit is None:
            self.finished = True
        self._ended.set()

    def finish(self) -> None:
        """The run has done what was asked."""
        if self.culprit is None:
            self.finished = True
            self._ended.set()

    async def wait(self) -> None:
        """Until the run has ended, well or not."""
        await self._ended.wait()
