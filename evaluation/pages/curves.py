"""Learning curves of a stage as pages show them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from evaluation.comparison import band
from evaluation.pages import charts
from evaluation.source_metrics import of_source
from pipelines.base.files import REPORT
from pipelines.stage.report import SPOOL, history

METRICS = {
    "reward/mean": "reward", "reward/correct": "share of answers correct", "rollout/length_mean": "tokens an answer",
    "policy/entropy": "entropy, nats a token", "policy/kl_to_reference": "KL to the reference, nats a token",
    "rollout/truncated_share": "share of answers cut at the token limit", "loss/heldout": "held-out loss", "loss/train": "training loss",
    "accuracy/heldout": "held-out accuracy", "rewards/margin": "margin of rewards",
}  # fmt: skip
"""Metric → what a page calls it."""
SHARES = ("reward/correct", "rollout/truncated_share", "accuracy/heldout")

Points = list[tuple[int, float]]


def title_of(metric: str) -> str:
    """What a page calls a metric; its name where it has no other."""
    own = of_source(metric)
    return METRICS.get(metric, metric) if own is None else f"{own[0]}, {own[1]}"


def is_share(metric: str) -> bool:
    """Whether a metric is from 0 to 1."""
    return metric in SHARES or (of_source(metric) is not None and metric.endswith("/correct"))


def of_artifact(artifact: Path) -> dict[str, Points]:
    """metric → its points by step, of those metrics that pages show, in their order; empty where the artifact is not here."""
    spool = artifact / REPORT / SPOOL
    lines = history(spool) if spool.is_file() else []
    of_sources = sorted({name for line in lines for name in line["values"] if of_source(name)})
    points = {
        name: [(line["step"], line["values"][name]) for line in lines if name in line["values"]]
        for name in (*METRICS, *of_sources)
    }
    return {name: values for name, values in points.items() if values}


def drawn(arms: Sequence[dict[str, list[Points]]], marks: Sequence[int] = ()) -> list[charts.Chart]:
    """A chart for each metric that is known, with a line for each arm: the mean over its runs, and a band from lowest to highest.

    Args:
        arms: for each, metric → the points of each of its runs.
        marks: steps at which there was an alarm.
    """
    shown = []
    for metric in dict.fromkeys([*METRICS, *(metric for arm in arms for metric in arm)]):
        title = title_of(metric)
        bands: list[dict[str, Any]] = [band(arm.get(metric, [])) for arm in arms]
        series = [charts.Line("", b["steps"], b["mean"], b["low"], b["high"], i) for i, b in enumerate(bands)]
        shown.append(charts.Chart(title, charts.lines(title, series, share=is_share(metric), marks=marks)))
    return [chart for chart in shown if chart.svg]
