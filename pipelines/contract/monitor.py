"""What a monitor's rule sees and says: a rule is a file of pipelines/monitor, or a plug-in's.

A rule reads metrics of a step by name and says whether something is wrong, in words. It may measure metrics of its own on the
step's rollouts. How many such steps in a row are an alarm (patience) and what happens then (warn, stop, finish, rollback) is the
same for all rules and no concern of theirs: `pipelines.stage.monitors` does it.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import stdev
from typing import TYPE_CHECKING, Any, ClassVar

from pipelines.contract.scorer import NoScorer, Scorer

if TYPE_CHECKING:
    from pipelines.data.records import Trajectory


@dataclass(frozen=True)
class StepRollouts:
    """The step's rollouts, for rules that measure something on them."""

    rows: Sequence[Trajectory]
    """Everything sampled in the step, scored."""
    verify: Callable[[str, Sequence[Trajectory]], list[float | None]]
    """(a verifier's name, rows) → its score of each row's completion against the row's own answer; None where it failed."""
    call: Callable[[str, Sequence[Trajectory]], list[float | None]]
    """(a function as the rule's setting names it, with the signature of a reward function; rows) → its value of each row."""
    scorer: Scorer = field(default_factory=NoScorer)
    """How likely a model finds a text; by the weights that the step begins with."""


class Monitor:
    """A rule. Settings are keyword-only arguments of `__init__`, as for every method."""

    patience: ClassVar[int] = 3
    """Steps in a row that it must find wrong before there is an alarm, where the recipe does not say."""
    measures: ClassVar[bool] = False
    """It has metrics of its own, made from the step's rollouts."""
    row_fields: ClassVar[frozenset[str] | None] = None
    """The fields of rollouts that these are made from (`Trajectory.only`); None: any. Of several processes the first one gets them."""
    asks_policy: ClassVar[bool] = False
    """Whether it asks the scoring hook about the policy itself."""
    reads: tuple[str, ...] = ()
    """Metrics that `judge` gets; a step without one of them is passed over."""
    may_read: tuple[str, ...] = ()
    """Metrics that `judge` gets too, where the step has them."""
    sees_nan: ClassVar[bool] = False
    """It gets values that are NaN as well; for other rules they are metrics that the step lacks."""
    makes: tuple[str, ...] = ()
    """Metrics that `measure` may return."""
    label: str = ""
    """What it is called in alarms; its own name where empty."""

    def measure(self, rollouts: StepRollouts) -> dict[str, float]:
        """Metrics of the step, by names of `makes`."""
        return {}

    def lines(self) -> list[dict[str, Any]]:
        """What `measure` found that is no metric, as lines of `monitored.jsonl` in the stage's artifact; asked for once a step."""
        return []

    @abstractmethod
    def judge(self, values: Mapping[str, float]) -> str | None:
        """What is wrong with the step, in words with the values; None where nothing is. Called once for each step.

        Args:
            values: metric → value, for all of `reads`, and for those of `may_read` that the step has.
        """

    def state_dict(self) -> dict[str, Any]:
        """What a restart needs, as plain values; part of every commit."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up where `state_dict` left off."""


class Series:
    """The first and the last `window` values of a metric; the two never overlap.

    >>> s = Series(2)
    >>> [(s.add(v), s.first, s.last)[1:] for v in (1, 3, 5, 7, 9)]
    [(None, None), (2.0, None), (2.0, None), (2.0, 6.0), (2.0, 8.0)]
    """

    def __init__(self, window: int) -> None:
        self.window = window
        self.first_values: list[float] = []
        self.last_values: list[float] = []

    def add(self, value: float) -> None:
        """The next step's value."""
        if len(self.first_values) < self.window:
            self.first_values.append(float(value))
        else:
            self.last_values = [*self.last_values, float(value)][-self.window :]

    @property
    def first(self) -> float | None:
        """Mean of the first window; None before it is full."""
        return mean(self.first_values) if len(self.first_values) == self.window else None

    @property
    def last(self) -> float | None:
        """Mean of the last window; None before it is full."""
        return mean(self.last_values) if len(self.last_values) == self.window else None

    def state_dict(self) -> dict[str, Any]:
        """Both windows."""
        return {"first": self.first_values, "last": self.last_values}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Both windows back."""
        self.first_values, self.last_values = list(state["first"]), list(state["last"])


class SeriesMonitor(Monitor):
    """A rule that compares the last steps of its metrics with the first ones.

    Args:
        window: steps in each of the two means.
    """

    def __init__(self, *, window: int) -> None:
        self.window = window
        self.steps = 0
        """Steps judged so far."""
        self.series = {name: Series(window) for name in self.reads}

    def judge(self, values: Mapping[str, float]) -> str | None:
        """Take the values in, and compare once both windows are full."""
        self.steps += 1
        for name, series in self.series.items():
            series.add(values[name])
        first = {name: series.first for name, series in self.series.items()}
        last = {name: series.last for name, series in self.series.items()}
        if any(value is None for value in (*first.values(), *last.values())):
            return None
        return self.compare(first, last)  # type: ignore[arg-type]

    @abstractmethod
    def compare(self, first: Mapping[str, float], last: Mapping[str, float]) -> str | None:
        """What is wrong, given each metric's mean over the first and over the last window; None where nothing is."""

    def state_dict(self) -> dict[str, Any]:
        """The windows."""
        return {"steps": self.steps, "series": {name: series.state_dict() for name, series in self.series.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The windows back."""
        self.steps = state["steps"]
        for name, series in self.series.items():
            series.load_state_dict(state["series"][name])


def graded_by_verifier(rows: Sequence[Any]) -> bool:
    """Whether the verifier's own score is the reward of all rows that have both."""
    return all(
        row.components.get("verifier") == row.score for row in rows if row.score is not None and row.correct is not None
    )


def mean(values: Sequence[float]) -> float:
    """Arithmetic mean of at least one value."""
    return sum(values) / len(values)


def standard_error(values: Sequence[float]) -> float:
    """Of the mean of at least two values, from their spread; 0 of fewer.

    >>> round(standard_error([1.0, 2.0, 3.0]), 4)
    0.5774
    """
    return stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0


def spread(rows: Sequence[Any], most: int) -> list[Any]:
    """At most `most` of the rows, evenly spaced.

    >>> spread(range(10), 4)
    [0, 2, 5, 7]
    """
    return list(rows) if len(rows) <= most else [rows[i * len(rows) // most] for i in range(most)]
