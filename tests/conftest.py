"""What every run says at its end: how many tests of each kind were collected, run, skipped and deselected.

A test that was left out proves nothing, so a session with skipped or deselected tests fails, unless
``HF_ALLOW_SKIP`` is set (for work on a part: ``HF_ALLOW_SKIP=1 pytest -k ...``). ``--cases`` lists the field
cases that were covered.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import hypothesis
import pytest

# The same examples on every machine, and no limit by the clock: a slow or busy machine is not a finding. Another
# seed is words on the command line: --hypothesis-profile=default --hypothesis-seed=N.
hypothesis.settings.register_profile("repeatable", derandomize=True, deadline=None)
hypothesis.settings.load_profile("repeatable")

TESTS = Path(__file__).resolve().parent
ALLOW = "HF_ALLOW_SKIP"


@dataclass
class Ledger:
    """Counts by kind; the kind of a test is its folder below ``tests``."""

    collected: Counter[str] = field(default_factory=Counter)
    deselected: Counter[str] = field(default_factory=Counter)
    run: Counter[str] = field(default_factory=Counter)
    skipped: Counter[str] = field(default_factory=Counter)
    kinds: dict[str, str] = field(default_factory=dict)
    cases: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    failed: set[str] = field(default_factory=set)
    ran: set[str] = field(default_factory=set)

    @property
    def left_out(self) -> int:
        return self.skipped.total() + self.deselected.total()


LEDGER = pytest.StashKey[Ledger]()


def _kind(item: pytest.Item) -> str:
    path = item.path
    return path.relative_to(TESTS).parts[0] if path.is_relative_to(TESTS) else "other"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--cases", action="store_true", help="list the field cases that the run covered")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[LEDGER] = Ledger()
    config.pluginmanager.register(Recorder(config.stash[LEDGER]), "ledger")


class Recorder:
    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            kind = _kind(item)
            self._ledger.kinds[item.nodeid] = kind
            self._ledger.collected[kind] += 1
            for marker in item.iter_markers("case"):
                self._ledger.cases[str(marker.args[0])].append(item.nodeid)

    def pytest_deselected(self, items: list[pytest.Item]) -> None:
        for item in items:
            self._ledger.deselected[_kind(item)] += 1

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        kind = self._ledger.kinds.get(report.nodeid, "other")
        if report.failed:
            self._ledger.failed.add(report.nodeid)
        if report.skipped:
            self._ledger.skipped[kind] += 1
        elif report.when == "call" or (report.when == "setup" and report.failed):
            self._ledger.run[kind] += 1
            self._ledger.ran.add(report.nodeid)


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    ledger = session.config.stash[LEDGER]
    if exitstatus == pytest.ExitCode.OK and ledger.left_out and not os.environ.get(ALLOW):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    ledger = config.stash[LEDGER]
    terminalreporter.section("counts", sep="-")
    for kind in sorted(ledger.collected):
        terminalreporter.write_line(
            f"{kind}: {ledger.collected[kind]} collected, {ledger.run[kind]} run, "
            f"{ledger.skipped[kind]} skipped, {ledger.deselected[kind]} deselected"
        )
    if config.getoption("--cases"):
        for case, tests in sorted(ledger.cases.items()):
            ran = [test for test in tests if test in ledger.ran]
            state = "failed" if ledger.failed & set(tests) else "passed" if len(ran) == len(tests) else "not run"
            terminalreporter.write_line(f"{case}: {state} ({', '.join(sorted({t.split('[')[0] for t in tests}))})")
        terminalreporter.write_line(f"cases: {len(ledger.cases)} covered")
    if ledger.left_out and not os.environ.get(ALLOW):
        terminalreporter.write_line(
            f"failed: {ledger.left_out} tests were left out (skipped or deselected); {ALLOW}=1 lets that pass", red=True
        )
