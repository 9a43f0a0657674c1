"""In CI a test may be skipped only for a reason that stands in tests/allowed_skips.txt. A pytest plugin."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ALLOWED = Path(__file__).parents[1] / "allowed_skips.txt"


def allowed_reasons() -> set[str]:
    """One a line; lines that begin with # explain."""
    lines = (line.strip() for line in ALLOWED.read_text().splitlines())
    return {line for line in lines if line and not line.startswith("#")}


class SkipGuard:
    """Turns a passed session into a failed one where a skip is not allowed."""

    def __init__(self) -> None:
        self.offences: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped and isinstance(report.longrepr, tuple):
            reason = report.longrepr[2].removeprefix("Skipped: ")
            if reason not in allowed_reasons():
                self.offences.append(f"{report.nodeid}: {reason}")

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.offences and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for offence in self.offences:
            terminalreporter.write_line(f"skipped for a reason that {ALLOWED.name} does not list: {offence}", red=True)


def pytest_configure(config: pytest.Config) -> None:
    """The guard watches in CI only; elsewhere a missing tool skips its tests by name."""
    if os.environ.get("CI"):
        config.pluginmanager.register(SkipGuard(), "skip-guard")
