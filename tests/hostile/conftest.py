"""After the hostile tests: how many inputs and faults of each kind were tried, and how many survived."""

from __future__ import annotations

from collections import Counter

import pytest

_tried: Counter[str] = Counter()
_survived: Counter[str] = Counter()


def kind(item: pytest.Item) -> str:
    """`@pytest.mark.hostile("signals")` names it; else the module does."""
    mark = item.get_closest_marker("hostile")
    return mark.args[0] if mark and mark.args else item.path.stem.removeprefix("test_").replace("_", " ")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item):
    """Count tests that ran, and those that passed."""
    report = yield
    if item.get_closest_marker("hostile") and (report.when == "call" or (report.when == "setup" and report.failed)):
        _tried[kind(item)] += not report.skipped
        _survived[kind(item)] += report.passed
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The table."""
    if not _tried:
        return
    terminalreporter.section("hostile")
    terminalreporter.line(f"{'kind':<28}{'tried':>7}{'survived':>10}")
    for name in sorted(_tried):
        terminalreporter.line(f"{name:<28}{_tried[name]:>7}{_survived[name]:>10}")
    terminalreporter.line(f"{'all':<28}{_tried.total():>7}{_survived.total():>10}")
