"""Held-out questions that a loop answers itself, where no other stage can sample its model: shares, paired gains, commits."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from pipelines import verifiers
from pipelines.base import intervals
from pipelines.base.files import REPORT, write_atomic
from pipelines.data.records import Problem
from pipelines.engine.fixed_data import FixedDataLoop
from pipelines.verifiers import Verdict

Shares = dict[str, list[float]]
"""`greedy`, `sampled`, ... → of each question the share of its answers that is correct; NaN where none could be scored."""
GREEDY = "heldout/correct_greedy"


def mean_known(values: Sequence[float]) -> float:
    """The mean of the values that are no NaN; NaN where there is none."""
    known = [value for value in values if value == value]
    return sum(known) / len(known) if known else math.nan


def verdicts_on(problems: Sequence[Problem], texts: Sequence[str]) -> list[Verdict]:
    """What the records' verifiers say of answers, one a problem."""
    return verifiers.verify_many(
        [(p.verifier, text, p.answer, p.info) for p, text in zip(problems, texts, strict=True)]
    )


def correctness(verdicts: Sequence[Verdict]) -> list[float]:
    """1 for a correct answer, 0 for an incorrect one, NaN for one that could not be scored."""
    return [math.nan if verdict.correct is None else float(verdict.correct) for verdict in verdicts]


def summary(shares: Shares, before: Shares | None = None) -> dict[str, float]:
    """Metrics of a measurement: `heldout/correct_NAME`, and where there is one before it `heldout/gain_NAME` with the ends of its interval.

    The interval is that of every comparison: of a mean of paired differences over questions, by the score test.

    >>> summary({"greedy": [1.0, 0.0, 1.0, 1.0]}, {"greedy": [0.0, 0.0, 1.0, 1.0]})["heldout/gain_greedy"]
    0.25
    """
    metrics = {f"heldout/correct_{name}": mean_known(values) for name, values in shares.items()}
    for name, values in shares.items():
        pairs = zip(values, (before or {}).get(name, []), strict=False)
        differences = [after - first for after, first in pairs if after == after and first == first]
        if not differences:
            continue
        low, high = intervals.difference_interval(differences)
        metrics |= {
            f"heldout/gain_{name}": sum(differences) / len(differences),
            f"heldout/gain_{name}_low": float(low),
            f"heldout/gain_{name}_high": float(high),
        }
    return metrics


class AnsweringLoop(FixedDataLoop):
    """One run of a stage that answers its held-out questions while it trains; arguments as in `Loop`."""

    measured: ClassVar[str] = f"{REPORT}/heldout.json"
    """In the artifact: the held-out questions and the share of each that is correct, before and after the stage."""
    asked: Sequence[Problem] = ()
    """The held-out questions; none where nothing is measured."""
    before: Shares
    """Held-out shares of the model that the stage started from; empty where they were not measured."""
    shares: Shares
    """The newest ones."""

    def answer(self) -> Shares:
        """Answer every question of `asked` with the network as it is."""
        raise NotImplementedError

    def order(self, count: int, epoch: int) -> list[int]:
        """Rows of a pass over the data."""
        return random.Random(f"{self.seed} {epoch}").sample(range(count), count)

    def answered(self) -> dict[str, float]:
        """Metrics of the held-out questions, answered by the network as it is."""
        if not self.asked:
            return {}
        self.shares = self.answer()
        return summary(self.shares, self.before)

    def summary(self, metrics: dict[str, float]) -> dict[str, float]:
        """What the weights that are handed on answer correctly."""
        return super().summary(metrics) | summary(self.shares, self.before)

    def extra_state(self, step: int) -> dict[str, Any]:
        """Also what was measured."""
        return super().extra_state(step) | {"before": self.before, "shares": self.shares}

    def load_extra_state(self, state: dict[str, Any]) -> None:
        """Take up what `extra_state` gave."""
        super().load_extra_state(state)
        self.before, self.shares = state["before"], state["shares"]

    def selected(self, state: dict[str, Any]) -> None:
        """What was measured is that of the weights."""
        super().selected(state)
        self.shares = state["shares"]

    def save(self) -> None:
        """The model, and what is known of each held-out question."""
        super().save()
        if not self.asked:
            return
        uids = [problem.uid for problem in self.asked]
        path: Path = self.out / self.measured
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, json.dumps({"questions": uids, "before": self.before, "after": self.shares}, indent=1))


class RewardedLoop(AnsweringLoop):
    """One that learns from the rewards of its own answers, and is measured before its first step too; arguments as in `Loop`."""

    def begin(self) -> None:
        """Measure the model that the stage starts from."""
        if self.asked and not self.resumed:
            self.report.metrics(0, self.answered())
            self.before = self.shares

    @property
    def commits_start(self) -> bool:
        """Also what the starting model answered."""
        return bool(self.asked) or super().commits_start

    def score(self, step: int, metrics: dict[str, float]) -> float | None:
        """The share of the held-out questions that is answered correctly at temperature 0, where it is measured after this step."""
        if not self.asked or ((step + 1) % self.settings.evaluate_every and step + 1 < self.total):
            return None
        metrics |= self.answered()
        return metrics[GREEDY]

    def note(self, metrics: dict[str, float]) -> str:
        """What was correct."""
        return f"correct {metrics['reward/correct']:.3f}"

    def describe_best(self, state: dict[str, Any]) -> dict[str, Any]:
        """What its weights answer."""
        return summary(state["shares"])
