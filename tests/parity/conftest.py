"""Shows the tables of right differences at the end of a run that compared cases."""

from __future__ import annotations

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    ran = [each for key in ("passed", "failed") for each in terminalreporter.stats.get(key, ())]
    if not any("tests/parity/test_parity.py" in each.nodeid for each in ran):
        return
    from tests.parity.case import COMPARED, names
    from tests.parity.differences import count_line, lines

    terminalreporter.section("differences from the reference that are right")
    # Each was compared by a test that has the case's name; a run of some of them counts those alone.
    compared = [name for name in names(*COMPARED) if any(each.nodeid.endswith(f"[{name}]") for each in ran)]
    terminalreporter.line(count_line(compared))
    for engine in COMPARED:
        for line in lines(engine):
            terminalreporter.line(line)
