"""Who is best among several methods, and how sure that is, over problems and seeds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy import special

from pipelines.base import intervals

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

    Means and gains have the intervals of `pipelines.base.intervals` over problems. With two seeds or more the spread of seeds is added as
    that of an independent part (square and add, Zou and Donner 2008) with Student's quantile; with one it is not in the intervals at all.
    The ends of a rank count the methods that are worse and better by the same intervals, made for all comparisons of a method at once
    (Bonferroni; Klein et al. 2020), so that a method whose difference to another contains 0 is not ranked apart from it.

    Args:
        scores: name → per seed, the score of every problem in [0, 1], in one order for all.
        baseline: the scores of the model that all started from.
        resamples: of problems (the same for all) and seeds, from which `best` is counted.

    Raises:
        ValueError: there is nothing to rank, or numbers of problems differ.
    """
    tables = {name: np.asarray(seeds, dtype=np.float64) for name, seeds in scores.items()}
    sizes = {table.shape[1:] for table in tables.values()} | ({(len(baseline),)} if baseline is not None else set())
    if not tables or sizes in ({()}, {(0,)}) or len(sizes) != 1:
        raise ValueError(f"a ranking needs the same problems for everybody, not {sorted(sizes)}")
    best = _share_best(list(tables.values()), resamples, np.random.default_rng(seed))
    pairwise = 1 - (1 - confidence) / max(1, len(tables) - 1)
    standings = []
    for (name, table), first in zip(tables.items(), best, strict=True):
        low, high = _with_seeds(intervals.share_interval(table.mean(0), confidence), [table], confidence)
        against = [difference(table, other, pairwise) for key, other in tables.items() if key != name]
        gain: tuple[float | None, float | None, float | None] = (None, None, None)
        if baseline is not None:
            start = np.asarray(baseline, dtype=np.float64)
            gain = (float(table.mean() - start.mean()), *difference(start[None], table, confidence))
        standings.append(
            Standing(
                name,
                float(table.mean()),
                max(0.0, low),
                min(1.0, high),
                [float(v) for v in table.mean(1)],
                float(first),
                1 + sum(low > 0 for low, _ in against),
                len(tables) - sum(high < 0 for _, high in against),
                *gain,
            )
        )
    return sorted(standings, key=lambda s: -s.mean)


def difference(old: np.ndarray, new: np.ndarray, confidence: float) -> tuple[float, float]:
    """Interval of the mean of new - old, paired by problem, with what the spread of seeds adds where there are two or more.

    Args:
        old: [seeds, problems], each in [0, 1].
        new: [seeds, problems] of the same problems; it may have another number of seeds.
    """
    ends = intervals.difference_interval(new.mean(0) - old.mean(0), confidence)
    low, high = _with_seeds((float(ends[0]), float(ends[1])), [old, new], confidence, float(new.mean() - old.mean()))
    return max(-1.0, low), min(1.0, high)


def _with_seeds(
    ends: tuple[float, float], tables: Sequence[np.ndarray], confidence: float, value: float | None = None
) -> tuple[float, float]:
    """An interval over problems, with what the seeds of its tables add: their spread beyond what the problems' answers explain."""
    middle = float(tables[0].mean()) if value is None else value
    seeds = [_seed_half(table, confidence) for table in tables]
    return middle - math.hypot(middle - ends[0], *seeds), middle + math.hypot(ends[1] - middle, *seeds)


def _seed_half(table: np.ndarray, confidence: float) -> float:
    """Half of the interval of a mean over seeds by their component of variance alone (two-way layout); 0 with one seed."""
    seeds, problems = table.shape
    if seeds < 2 or problems < 2:
        return 0.0
    by_seed = table.mean(1)
    residual = table - by_seed[:, None] - table.mean(0) + table.mean()
    noise = float((residual**2).sum()) / ((seeds - 1) * (problems - 1)) / problems
    component = max(0.0, float(by_seed.var(ddof=1)) - noise) / seeds
    return float(special.stdtrit(seeds - 1, 0.5 + confidence / 2)) * math.sqrt(component)


def _share_best(tables: Sequence[np.ndarray], resamples: int, generator: np.random.Generator) -> np.ndarray:
    """How often each has the highest mean when problems and seeds are resampled, ties shared out: [methods]."""
    problems, won = tables[0].shape[1], np.zeros(len(tables))
    for first in range(0, resamples, CHUNK):
        count = min(CHUNK, resamples - first)
        weight = generator.multinomial(problems, np.full(problems, 1 / problems), size=count) / problems
        means = np.stack([_resampled(table, weight, generator) for table in tables], axis=1)
        winners = means >= means.max(1, keepdims=True) - 1e-12
        won += (winners / winners.sum(1, keepdims=True)).sum(0)
    return won / resamples


def _resampled(table: np.ndarray, weight: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Means [resamples] of a table [seeds, problems] under weights [resamples, problems] and resampled seeds."""
    seeds = len(table)
    chosen = generator.multinomial(seeds, np.full(seeds, 1 / seeds), size=len(weight)) / seeds
    return (chosen * (weight @ table.T)).sum(1)
