"""Who is best among several methods, and how sure that is: a bootstrap over problems and seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

CHUNK = 256
"""Resamples computed at once."""


@dataclass(frozen=True)
class Standing:
    """A method's place among the others."""

    name: str
    mean: float
    low: float
    high: float
    by_seed: list[float]
    best: float
    """Share of the resamples in which it is the best; ties are shared out."""
    rank_low: int
    """Ends of the interval of its rank, 1 being the best."""
    rank_high: int
    gain: float | None = None
    """Over the baseline, in the same problems; None without one."""
    gain_low: float | None = None
    gain_high: float | None = None

    def body(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def rank(
    scores: Mapping[str, Sequence[Sequence[float]]],
    baseline: Sequence[float] | None = None,
    *,
    confidence: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> list[Standing]:
    """The methods, best first.

    All are resampled with the same problems, because a hard problem is hard for each of them, and each with seeds of its own.
    With few seeds (three, say) their spread is drawn too narrow, by a factor near sqrt((n - 1) / n); with one it is not in the
    intervals at all.

    Args:
        scores: name → per seed, the score of every problem in [0, 1], in one order for all.
        baseline: the scores of the model that all started from.

    Raises:
        ValueError: there is nothing to rank, or numbers of problems differ.
    """
    tables = {name: np.asarray(seeds, dtype=np.float64) for name, seeds in scores.items()}
    sizes = {table.shape[1:] for table in tables.values()} | ({(len(baseline),)} if baseline is not None else set())
    if not tables or sizes in ({()}, {(0,)}) or len(sizes) != 1:
        raise ValueError(f"a ranking needs the same problems for everybody, not {sorted(sizes)}")
    (problems,) = sizes.pop()
    generator = np.random.default_rng(seed)
    start = np.asarray(baseline if baseline is not None else np.zeros(problems), dtype=np.float64)
    drawn, gains = [], []
    for first in range(0, resamples, CHUNK):
        count = min(CHUNK, resamples - first)
        weight = generator.multinomial(problems, np.full(problems, 1 / problems), size=count) / problems
        means = np.stack([_resampled(table, weight, generator) for table in tables.values()], axis=1)
        drawn.append(means)
        gains.append(means - (weight @ start)[:, None])
    means, differences = np.concatenate(drawn), np.concatenate(gains)
    tail = (1 - confidence) / 2
    low, high = np.quantile(means, [tail, 1 - tail], axis=0)
    gain_low, gain_high = np.quantile(differences, [tail, 1 - tail], axis=0)
    winners = means >= means.max(1, keepdims=True) - 1e-12
    best = (winners / winners.sum(1, keepdims=True)).mean(0)
    better = (means[:, None, :] > means[:, :, None] + 1e-12).sum(2)
    rank_low, rank_high = np.quantile(better + 1, [tail, 1 - tail], axis=0, method="nearest")
    standings = []
    for i, (name, table) in enumerate(tables.items()):
        gain = (float(table.mean() - start.mean()), float(gain_low[i]), float(gain_high[i]))
        standings.append(
            Standing(
                name,
                float(table.mean()),
                float(low[i]),
                float(high[i]),
                [float(v) for v in table.mean(1)],
                float(best[i]),
                int(rank_low[i]),
                int(rank_high[i]),
                *(gain if baseline is not None else (None, None, None)),
            )
        )
    return sorted(standings, key=lambda s: -s.mean)


def _resampled(table: np.ndarray, weight: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Means [resamples] of a table [seeds, problems] under weights [resamples, problems] and resampled seeds."""
    seeds = len(table)
    chosen = generator.multinomial(seeds, np.full(seeds, 1 / seeds), size=len(weight)) / seeds
    return (chosen * (weight @ table.T)).sum(1)
