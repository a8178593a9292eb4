from __future__ import annotations

import pytest

from tests.integration.bad_input import table


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    found = table.lines()
    if found:
        terminalreporter.section("bad input, as seen", sep="-")
        for line in found:
            terminalreporter.write_line(line)
