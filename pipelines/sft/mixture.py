"""Rows of a step out of several sources, by shares that change over the stage."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from pipelines.engine.fixed_data import Epochs


def planned_rows(shares: Sequence[tuple[float, float]], per_step: int, steps: int) -> np.ndarray:
    """How many rows of each source have been read before each step, int64 [steps + 1, sources].

    Every step reads `per_step` rows. What a source is due and did not get, because rows are whole, is carried on, so that after any
    number of steps each source is less than `sources` rows away from its exact share.

    Args:
        shares: of each source at the first and at the last step, changing evenly in between; relative to their sum at each step.

    >>> planned_rows([(1, 0), (0, 1)], 2, 3).tolist()
    [[0, 0], [2, 0], [3, 1], [3, 3]]
    """
    ends = np.array(shares, dtype=np.float64)
    place = np.linspace(0.0, 1.0, steps)[:, None] if steps > 1 else np.zeros((1, 1))
    exact = ends[:, 0] * (1 - place) + ends[:, 1] * place
    exact *= per_step / exact.sum(1, keepdims=True)
    read = np.zeros((steps + 1, len(shares)), dtype=np.int64)
    due = np.zeros(len(shares))
    for step in range(steps):
        due += exact[step]
        counts = np.maximum(np.floor(due + 1e-9), 0).astype(np.int64)
        counts = _of_sum(counts, due, per_step)
        due -= counts
        read[step + 1] = read[step] + counts
    return read


def _of_sum(counts: np.ndarray, due: np.ndarray, total: int) -> np.ndarray:
    """The counts with rows added where most are due, or taken where fewest are, until they add up to `total`."""
    while (missing := total - int(counts.sum())) != 0:
        rest = due - counts
        if missing > 0:
            counts[int(rest.argmax())] += 1
        else:
            counts[int(np.where(counts > 0, rest, np.inf).argmin())] -= 1
    return counts


class Mixture:
    """Rows of a step: of each source in an order of its own, as often round as needed. A pure function of the step.

    Args:
        rows_of: source → epoch → its rows, in order; a pure function.
        shares: source → its share at the first and at the last step.
        per_step: rows of a step.
        steps: of the stage.
    """

    def __init__(
        self,
        rows_of: Mapping[str, Callable[[int], list[Any]]],
        shares: Mapping[str, tuple[float, float]],
        per_step: int,
        steps: int,
    ) -> None:
        names = sorted(shares)
        self.epochs = {name: Epochs(rows_of[name], 1) for name in names}
        self.read = planned_rows([shares[name] for name in names], per_step, steps)

    def step(self, number: int) -> list[Any]:
        """Rows of step `number`, those of a source together."""
        counts = (self.read[number + 1] - self.read[number]).tolist()
        starts = self.read[number].tolist()
        return [
            row
            for epochs, start, count in zip(self.epochs.values(), starts, counts, strict=True)
            for row in epochs.take(start, count)
        ]

    def rows(self) -> dict[str, int]:
        """Source → rows that the whole stage reads."""
        return dict(zip(self.epochs, self.read[-1].tolist(), strict=True))
