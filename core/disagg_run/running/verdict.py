"""Whether and how a run has ended: the first failure is the culprit, later ones are its consequences."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from disagg_run.running.outcome import Failure


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
        """Take rank 0's word for why the run ends: None = it has done what was asked."""
        if culprit is not None:
            self.settle(culprit)
        elif self.culprit is None:
            self.finished = True
        self._ended.set()

    def settle(self, culprit: Failure | None) -> None:
        """Take rank 0's last word for how the run ended; what failed here beside it is a consequence."""
        own = self.culprit
        if own is not None and (culprit is None or (own.rank, own.process) != (culprit.rank, culprit.process)):
            self.consequences.append(own)
        self.culprit = culprit
        self.finished = culprit is None

    def spoil(self, failure: Failure) -> None:
        """Record what went wrong while the run ended; it is the culprit where the run itself was good."""
        if self.culprit is not None:
            self.consequences.append(failure)
            return
        self.culprit = failure
        self.finished = False

    def finish(self) -> None:
        """The run has done what was asked."""
        if self.culprit is None:
            self.finished = True
            self._ended.set()

    async def wait(self) -> None:
        """Until the run has ended, well or not."""
        await self._ended.wait()
