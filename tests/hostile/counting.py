"""After the hostile tests: how many of each kind were run, and how many passed."""

from __future__ import annotations

import json
import os
from collections import Counter

import pytest
from hostile import faults

_tried: Counter[str] = Counter()
_passed: Counter[str] = Counter()


def kind(item: pytest.Item) -> str:
    """`@pytest.mark.hostile("signals")` names it; else the table of faults.py, and for tests/hostile the module."""
    mark = item.get_closest_marker("hostile")
    return mark.args[0] if mark and mark.args else item.path.stem.removeprefix("test_").replace("_", " ")


def mark_hostile(items: list[pytest.Item]) -> None:
    """Mark the tests of files that the table of hostile inputs names."""
    for item in items:
        if (name := faults.kind_of(item.path)) is not None:
            item.add_marker(pytest.mark.hostile(name), append=False)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item):
    """Count tests that ran, and those that passed."""
    report = yield
    if item.get_closest_marker("hostile") and (report.when == "call" or (report.when == "setup" and report.failed)):
        _tried[kind(item)] += not report.skipped
        _passed[kind(item)] += report.passed
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The table, where hostile tests were asked for; stored for docs/operations.md where WHETSTONE_HOSTILE_COUNTS is set."""
    if not _tried or "hostile" not in terminalreporter.config.option.markexpr:
        return
    terminalreporter.section("hostile")
    terminalreporter.line(f"{'kind':<32}{'tried':>7}{'right':>10}")
    for name in sorted(_tried):
        terminalreporter.line(f"{name:<32}{_tried[name]:>7}{_passed[name]:>10}")
    terminalreporter.line(f"{'all':<32}{_tried.total():>7}{_passed.total():>10}")
    if os.environ.get("WHETSTONE_HOSTILE_COUNTS"):
        known = json.loads(faults.COUNTS.read_text()) if faults.COUNTS.exists() else {}
        known |= {name: [tried, _passed[name]] for name, tried in _tried.items() if tried}
        faults.COUNTS.write_text(json.dumps(dict(sorted(known.items())), indent=1) + "\n")
