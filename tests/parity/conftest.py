"""Shows the tables of right differences at the end of a run that compared cases."""

from __future__ import annotations

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    ran = [each for key in ("passed", "failed") for each in terminalreporter.stats.get(key, ())]
    if not any("tests/parity/test_parity.py" in each.nodeid for each in ran):
        return
    from tests.parity.case import COMPARED
    from tests.parity.differences import lines

    terminalreporter.section("differences from the reference that are right")
    for engine in COMPARED:
        for line in lines(engine):
            terminalreporter.line(line)
