"""Completions repeat themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.monitor import SeriesMonitor, StepRollouts, mean, spread

POLICY = 3
"""Role of a token that the policy chose."""
ROWS = 64
"""Rollouts that are looked at, at most."""


@method(paper="1904.09751", title="Repetition of n-grams (Neural Text Degeneration)", checked="closed form")
class repetition(SeriesMonitor):
    """Many of the policy's n-grams repeat earlier ones of the same completion.

    Measures `rollout/repetition`: 1 - distinct n-grams / n-grams of the tokens that the policy chose, mean over up to 64 completions that
    have any. The rule is violated by a mean over the last `window` steps above `above`, if it has risen by at least `rises_by` since the
    first ones: a task may ask for repetition from the start.
    """

    measures = True
    row_fields = frozenset({"tokens", "role"})
    reads = makes = ("rollout/repetition",)

    def __init__(
        self,
        *,
        ngram: Annotated[int, Field(ge=1, le=100)] = 4,
        above: Annotated[float, Field(ge=0, lt=1)] = 0.3,
        rises_by: Annotated[float, Field(ge=0, lt=1)] = 0.15,
        window: Annotated[int, Field(ge=1, le=10_000)] = 5,
    ) -> None:
        super().__init__(window=window)
        self.ngram, self.above, self.rises_by = ngram, above, rises_by

    def measure(self, rollouts: StepRollouts) -> dict[str, float]:
        """`rollout/repetition`; 0 where no completion has an n-gram."""
        rows: list[Any] = spread(rollouts.rows, ROWS)
        texts = [[t for t, role in zip(row.tokens, row.role, strict=True) if role == POLICY] for row in rows]
        shares = [repeated(tokens, self.ngram) for tokens in texts if len(tokens) >= self.ngram]
        return {"rollout/repetition": mean(shares) if shares else 0.0}

    def compare(self, first: Mapping[str, float], last: Mapping[str, float]) -> str | None:
        """Against the limit and the first window."""
        before, now = first["rollout/repetition"], last["rollout/repetition"]
        if now <= self.above or now - before < self.rises_by:
            return None
        return (
            f"{100 * now:.0f} % of {self.ngram}-grams repeat an earlier one of the completion; it was {100 * before:.0f} %. Look in "
            "rollouts.jsonl whether the reward pays for repeating; if it does not, lower rlvr.optimizer.learning_rate and start again from "
            "before it began"
        )


def repeated(tokens: Sequence[int], n: int) -> float:
    """Share of n-grams that occurred before.

    >>> repeated([1, 2, 1, 2, 1], 2), repeated([1, 2, 3], 2)
    (0.5, 0.0)
    """
    grams = [tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1)]
    return 1 - len(set(grams)) / len(grams)
