"""Scores with intervals over problems: avg@k, unbiased pass@k, maj@k, lengths, costs, and paired differences."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np

from pipelines.base import intervals


def pass_at_k(n: int, correct: int, k: int) -> float:
    """Chance that k answers drawn without replacement from n hold a correct one (Chen et al. 2021, 2107.03374).

    Raises:
        ValueError: k is larger than n.

    >>> pass_at_k(4, 1, 1), pass_at_k(4, 1, 2), pass_at_k(4, 3, 2)
    (0.25, 0.5, 1.0)
    """
    if k > n:
        raise ValueError(f"pass@{k} needs at least {k} answers per problem, there are {n}")
    if n - correct < k:
        return 1.0
    return 1.0 - math.comb(n - correct, k) / math.comb(n, k)


def majority(answers: Sequence[str], scores: Sequence[float]) -> float:
    """Score of the most frequent answer (maj@n); a tie gives the mean over the tied answers.

    >>> majority(["7", "8", "7"], [1.0, 0.0, 1.0]), majority(["7", "8"], [1.0, 0.0])
    (1.0, 0.5)
    """
    counts = Counter(answers)
    most = max(counts.values())
    value = dict(zip(answers, scores, strict=True))
    tied = [value[a] for a, n in counts.items() if n == most]
    return sum(tied) / len(tied)


def paired_difference(
    first: Sequence[float], second: Sequence[float], *, confidence: float = 0.95
) -> tuple[float, float, float]:
    """Mean of second - first over the same problems, shares in [0, 1], with its interval: (difference, low, high).

    Raises:
        ValueError: the lengths differ; the two were not measured on the same problems.
    """
    if len(first) != len(second) or not len(first):
        raise ValueError(f"paired comparison of {len(first)} and {len(second)} problems")
    difference = np.asarray(second, dtype=np.float64) - np.asarray(first, dtype=np.float64)
    low, high = intervals.difference_interval(difference, confidence)
    return float(difference.mean()), float(low), float(high)


def difference_cell(first: Sequence[float], second: Sequence[float], *, confidence: float = 0.95) -> dict[str, float]:
    """`paired_difference` as value, low, high, n."""
    value, low, high = paired_difference(first, second, confidence=confidence)
    return intervals.body(value, (low, high), len(first))


def summarise(
    scores: Sequence[Sequence[float]],
    answers: Sequence[Sequence[str]],
    lengths: Sequence[Sequence[float]],
    *,
    confidence: float = 0.95,
) -> dict[str, dict[str, float]]:
    """Every metric of one checkpoint on one benchmark.

    Args:
        scores: per problem, the score of each of its k answers (correct from 1 on).
        answers: per problem, the answers' texts in a form that can be compared.
        lengths: per problem, the answers' lengths in tokens.

    Returns:
        avg@k, pass@1, pass@k (powers of two up to k), maj@k and mean_length, each with value, low, high, n.
    """
    k = min(len(s) for s in scores)
    correct = [[float(v >= 1) for v in s] for s in scores]
    columns: dict[str, list[float]] = {f"avg@{k}": [float(np.mean(s)) for s in correct]}
    powers = [2**i for i in range(12) if 2**i < k]
    for j in sorted({1, *powers, k}):
        columns[f"pass@{j}"] = [pass_at_k(len(s), int(sum(s)), j) for s in correct]
    if k > 2:
        columns[f"maj@{k}"] = [majority(a, s) for a, s in zip(answers, correct, strict=True)]
    if any(0 < v < 1 for s in scores for v in s):
        columns["score"] = [float(np.mean(s)) for s in scores]
    cells = {name: mean_cell(v, confidence=confidence) for name, v in columns.items()}
    means = [float(np.mean(n)) for n in lengths]
    return cells | {"mean_length": count_cell(means, confidence=confidence)}


def cost_cell(costs: Sequence[float], solved: Sequence[float], *, confidence: float = 0.95) -> dict[str, float] | None:
    """What one solved task costs: all costs over all solutions, failures included, as value, low, high, n; None where none is solved.

    The interval is the linearised one of a ratio (Cochran 1977, section 6.3) on the scale of logarithms, so that it stays above 0: the
    problems' residuals cost - ratio * solved in units of the mean cost, with Student's quantile.

    Args:
        costs: per problem, what its answers cost together.
        solved: per problem, how many of them are correct.

    >>> cost_cell([10.0, 30.0], [1.0, 1.0])["value"], cost_cell([10.0, 30.0], [0.0, 1.0])["value"], cost_cell([9.0], [0.0])
    (20.0, 40.0, None)
    """
    cost, count = np.asarray(costs, dtype=np.float64), np.asarray(solved, dtype=np.float64)
    if count.sum() == 0 or cost.sum() <= 0:
        return None
    ratio = float(cost.sum() / count.sum())
    low, high = intervals.mean_interval((cost - ratio * count) / cost.mean(), confidence)
    return intervals.body(ratio, (ratio * math.exp(low), ratio * math.exp(high)), len(cost))


def mean_cell(values: Sequence[float], *, confidence: float = 0.95) -> dict[str, float]:
    """Mean over problems as value, low, high, n: `share_interval` where all are in [0, 1], else `mean_interval`."""
    x = np.asarray(values, dtype=np.float64)
    shares = bool(((x >= 0) & (x <= 1)).all())
    ends = intervals.share_interval(x, confidence) if shares else intervals.mean_interval(x, confidence)
    return intervals.body(float(x.mean()), ends, len(x))


def pooled_cell(verdicts: Sequence[Sequence[float]], *, confidence: float = 0.95) -> dict[str, float]:
    """Share of all verdicts of all problems, which may have different numbers of them, as value, low, high, n problems.

    The interval is `share_interval` of the linearised ratio (Cochran 1977, section 6.3): problem i stands for
    share + (correct_i - share * count_i) / mean count.

    Args:
        verdicts: per problem, 0 or 1 for each of its parts.

    >>> cell = pooled_cell([[1, 1, 1], [0]])
    >>> cell["value"], cell["n"], cell["low"] < 0.5 < cell["high"] < 1
    (0.75, 2, True)
    """
    correct = np.asarray([sum(each) for each in verdicts], dtype=np.float64)
    count = np.asarray([len(each) for each in verdicts], dtype=np.float64)
    share = float(correct.sum() / count.sum())
    linearised = share + (correct - share * count) / count.mean()
    return intervals.body(share, intervals.share_interval(linearised, confidence), len(count))


def count_cell(values: Sequence[float], *, confidence: float = 0.95) -> dict[str, float]:
    """Mean over problems of what is counted (tokens, turns), as value, low, high, n; see `mean_interval`."""
    ends = intervals.mean_interval(values, confidence, least=0.0)
    return intervals.body(float(np.mean(values)), ends, len(values))


def reward_cell(values: Sequence[float], *, confidence: float = 0.95) -> dict[str, float]:
    """Mean over problems of rewards of any size and sign, as value, low, high, n; see `mean_interval`."""
    return intervals.body(float(np.mean(values)), intervals.mean_interval(values, confidence), len(values))
