"""Tables that real tests leave for the end of the run."""

from __future__ import annotations

import pytest

from tests.real.tables import TABLES


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for title, lines in TABLES.items():
        terminalreporter.section(title)
        for line in lines:
            terminalreporter.line(line)
