"""What a finished stage has achieved, in one line: the metrics that say so, from its first steps to its last."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pipelines.base.files import REPORT
from pipelines.contract.metrics import METRICS
from pipelines.contract.monitor import mean
from pipelines.stage.report import SPOOL, history

ENDS = 10
"""Steps at each end that are averaged, at most; and at most a fifth of the values."""


def achieved(kind: str, spool: Path) -> str:
    """The line of a stage of this kind, from its spool; empty where it trains nothing or has no step.

    Steps that a rollback has undone do not count.
    """
    series: dict[str, list[float]] = {}
    table = METRICS.get(kind, {})
    for line in history(spool) if table else []:
        for name, value in line["values"].items():
            series.setdefault(name, []).append(value)
    return ", ".join(
        change(about.outcome, series[name]) for name, about in table.items() if about.outcome and name in series
    )


def of_artifact(kind: str, path: Path) -> str:
    """The line of a finished stage, from its artifact."""
    return achieved(kind, path / REPORT / SPOOL)


def change(what: str, values: Sequence[float]) -> str:
    """What a metric was at first and at last, as means over some steps at each end.

    >>> change("reward", [0.1, 0.3, 0.2]), change("correct %", [0.0] * 50 + [0.5] * 10), change("loss", [2.0])
    ('reward 0.1 → 0.2', 'correct 0.0 % → 50.0 %', 'loss 2')
    """
    count = max(1, min(ENDS, len(values) // 5))
    ends = [mean(values[:count]), mean(values[-count:])][: len(values)]
    share = what.endswith(" %")
    shown = [f"{100 * value:.1f} %" if share else f"{value:.4g}" for value in ends]
    return f"{what.removesuffix(' %')} {' → '.join(shown)}"
