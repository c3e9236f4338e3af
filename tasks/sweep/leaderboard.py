"""What the runs of a sweep came to: scores by problem, cost, and the leaderboard."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from evaluation import paired, samples
from evaluation.ranking import Standing, difference, rank
from evaluation.risk_return import tail_mean
from pipelines.base import intervals
from pipelines.base.errors import UserError
from pipelines.base.files import REPORT, json_lines
from pipelines.recipe.stage_kind import MODEL, SCORES
from pipelines.stage.report import SPOOL
from tasks.store.artifacts import stored_scores
from tasks.sweep.plan import START, Cell
from tasks.tracking.record import last_of

if TYPE_CHECKING:
    from evaluation.pages.curves import Points


def trial_score(summary: dict[str, Any]) -> float:
    """Mean reward over the last quarter of a trial's training; minus infinity where it was not finite there."""
    path = Path((last_of(summary, MODEL) or {})["artifact"]) / REPORT / SPOOL
    rewards = []
    for line in json_lines(path):
        if line["kind"] == "metrics":
            values = line["values"]
            value = values.get("reward/mean", -values["loss/heldout"] if "loss/heldout" in values else None)
            rewards += [] if value is None else [value]
    score = tail_mean(rewards)
    return -math.inf if score is None else score


def task_answers(summary: dict[str, Any], task: str) -> dict[str, samples.Sample]:
    """The problems as the one checkpoint that a run of a sweep evaluates answered them, alone.

    Raises:
        UserError: the benchmark keeps no score for each problem.
    """
    artifact = Path((last_of(summary, SCORES) or {})["artifact"])
    last = next(reversed(stored_scores(artifact)), "*")  # those before it are columns of guidance and of search
    problems = {
        key: sample
        for path in artifact.glob(f"samples/{last}/{task}.jsonl")
        for key, sample in samples.read(path).items()
    }
    if not problems:
        raise UserError("evaluate.tasks", f"{task} has no score for each problem, so nothing can be ranked by it.")
    return problems


def training_cost(summary: dict[str, Any], stages: Sequence[str] = ()) -> dict[str, float]:
    """Seconds of training, completion tokens and steps; where a stage was reused, what it took when it ran.

    Args:
        stages: those that count together; default: the last that makes a model.
    """
    cost_of = [summary["stages"][name] for name in stages if name in summary["stages"]] or [
        last_of(summary, MODEL) or {}
    ]
    cost: dict[str, float] = {"seconds": 0.0, "steps": 0.0}
    for about in cost_of:
        manifest = json.loads((Path(about["artifact"]) / "manifest.json").read_text())
        metrics = manifest.get("numbers") or {}
        cost["seconds"] += float(manifest.get("seconds") or 0.0)
        cost["steps"] += float(metrics.get("steps") or 0.0)
        if "tokens_sampled" in metrics:
            cost["tokens"] = cost.get("tokens", 0.0) + float(metrics["tokens_sampled"])
    return cost


@dataclass
class Outcome:
    """What a run of a sweep came to. `of` reads its artifacts, on the machine that holds them."""

    cell: Cell
    summary: dict[str, Any] | None
    error: str | None = None
    scores: dict[str, float] = field(default_factory=dict)
    """Problem → share of its answers that are correct; empty where nothing was evaluated."""
    cost: dict[str, float] = field(default_factory=dict)
    """See `training_cost`; empty where nothing was trained."""
    truncated: float | None = None
    """Share of its answers that were cut at the token limit; None where it is not known."""
    reward: float = -math.inf
    """Of a trial, see `trial_score`."""

    @classmethod
    def of(cls, cell: Cell, summary: dict[str, Any], task: str, k: int = 1) -> Outcome:
        """A run that came to its end, with what its artifacts say.

        Args:
            k: of pass@k, by which it is ranked.

        Raises:
            UserError: the benchmark keeps no score for each problem, or fewer than k answers.
        """
        outcome = cls(cell, summary)
        if last_of(summary, MODEL):
            outcome.cost = training_cost(summary, cell.cost_of)
        if last_of(summary, SCORES):
            answers = task_answers(summary, task)
            fewest = min(len(own.scores) for own in answers.values())
            if fewest < k:
                raise UserError("metric", f"{task} has {fewest} answers to a problem, which is too few for pass@{k}.")
            passed = paired.passes([own.scores for own in answers.values()], [k])[:, 0]
            outcome.scores = dict(zip(answers, passed.tolist(), strict=True))
            outcome.truncated = samples.truncated_share(answers.values())
        else:
            outcome.reward = trial_score(summary)
        return outcome


def leaderboard(
    outcomes: Iterable[Outcome], task: str, *, confidence: float = 0.95, resamples: int = 2000
) -> list[dict[str, Any]]:
    """The variants, best first: their standing, cost and runs. Only problems that all runs were asked count.

    Variants with fewer seeds than others (their runs failed, or have not ended) are ranked by those they have.
    """
    outcomes = [o for o in outcomes if o.scores]
    ranked = [o for o in outcomes if o.cell.variant != START]
    if not ranked:
        return []
    order = _asked(outcomes)
    if not order:
        raise UserError(
            "evaluate.tasks", f"the runs were not asked one {task} problem in common, so they cannot be ranked."
        )
    scores: dict[str, list[list[float]]] = {}
    baseline = None
    for outcome in outcomes:
        values = [outcome.scores[problem] for problem in order]
        if outcome.cell.variant == START:
            baseline = values
        else:
            scores.setdefault(outcome.cell.variant, []).append(values)
    standings = rank(scores, baseline, confidence=confidence, resamples=resamples)
    return [_row(standing, [o for o in ranked if o.cell.variant == standing.name]) for standing in standings]


def _asked(outcomes: list[Outcome]) -> list[str]:
    """The problems that all runs were asked, in the order of the first."""
    shared = set.intersection(*(set(o.scores) for o in outcomes))
    return [problem for problem in outcomes[0].scores if problem in shared]


def differences(outcomes: Iterable[Outcome], baseline: str, *, confidence: float = 0.95) -> dict[str, dict[str, float]]:
    """Each variant over one of them, paired by problem, with the intervals of `evaluation.ranking`: value, low, high; and problems.

    Empty where no run of the baseline came to its end.
    """
    outcomes = [o for o in outcomes if o.scores]
    order = _asked(outcomes) if outcomes else []
    tables: dict[str, list[list[float]]] = {}
    for outcome in outcomes:
        tables.setdefault(outcome.cell.variant, []).append([outcome.scores[problem] for problem in order])
    old = np.array(tables.pop(baseline, []))
    if not old.size:
        return {}
    out = {}
    for name, rows in tables.items():
        new = np.array(rows)
        low, high = difference(old, new, confidence)
        out[name] = {"value": float(new.mean() - old.mean()), "low": low, "high": high, "problems": len(order)}
    return out


def start_of(outcomes: Iterable[Outcome], *, confidence: float = 0.95) -> dict[str, Any] | None:
    """The checkpoint that all variants start from, on the problems of the leaderboard; None where there is none, or it failed.

    Returns:
        name (of its stage), mean with its interval (`low`, `high`), truncated and runs.
    """
    outcomes = [o for o in outcomes if o.scores]
    own = next((o for o in outcomes if o.cell.variant == START), None)
    order = _asked(outcomes) if own else []
    if own is None or not order:
        return None
    values = np.array([own.scores[problem] for problem in order])
    low, high = intervals.share_interval(values, confidence)
    summary = own.summary or {}
    name = next(reversed(summary.get("evaluation") or {"start": {}}))
    return {
        "name": name, "mean": float(values.mean()), "low": low, "high": high, "truncated": own.truncated,
        "runs": [summary.get("parent_run_id")], "seeds": [None],
    }  # fmt: skip


def curves(rows: Iterable[dict[str, Any]], summaries: Mapping[str, dict[str, Any]]) -> list[dict[str, list[Points]]]:
    """For each row metric → the points of each of its runs, as far as their histories are here.

    Args:
        rows: of the leaderboard.
        summaries: id of a run → its summary.
    """
    from evaluation.pages.curves import of_artifact

    by_row: list[dict[str, list[Points]]] = []
    for row in rows:
        known = [last_of(summaries[run], MODEL) for run in row["runs"] if run in summaries]
        histories = [of_artifact(Path(about["artifact"])) for about in known if about]
        names = dict.fromkeys(name for history in histories for name in history)
        by_row.append({name: [history[name] for history in histories if name in history] for name in names})
    return by_row


def _row(standing: Standing, outcomes: list[Outcome]) -> dict[str, Any]:
    costs = [o.cost for o in outcomes]
    mean = {name: statistics.fmean(c[name] for c in costs) for name in costs[0] if all(name in c for c in costs)}
    runs = [(o.summary or {}).get("parent_run_id") for o in outcomes]
    cut = [o.truncated for o in outcomes if o.truncated is not None]
    truncated = statistics.fmean(cut) if len(cut) == len(outcomes) else None
    return standing.body() | {
        "cost": mean,
        "truncated": truncated,
        "runs": runs,
        "seeds": [o.cell.seed for o in outcomes],
    }
