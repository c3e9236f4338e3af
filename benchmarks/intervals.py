"""Level, coverage and power of intervals and tests over problems: those of `pipelines.base.intervals` and what else the literature offers.

    python -m benchmarks.intervals                      all tables
    python -m benchmarks.intervals --simulations 2000 --sizes 5 10 20 60 250      those of docs/evaluation.md
    python -m benchmarks.intervals --sizes 10 60 --simulations 1000

Pass rates of problems are drawn, then the answers of two models to them; the truth is the difference of the expected rates. The populations
(`POPULATIONS`) have no difference (equal rates, independent rates, answers that are equal but for one problem of twenty) or one (a tenth
of what was missing learned; nearly all of it; whole problems lost, one of twenty and one of a hundred), each with mean shares of 0, 0.01,
0.05, 0.5, 0.95, 0.99 and 1. For a number of problems and of answers to each, the tables give the smallest and the mean coverage of the
95 % interval over all of them, its mean width, the largest level of the test at 5 % where there is no difference, the mean power where
there is one, and the largest share of samples in which interval and p contradict each other.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
from scipy import special, stats

from pipelines.base import intervals

Floats = np.ndarray
Result = tuple[Floats | None, Floats | None, Floats | None]
"""Lower and upper ends, and p; None where a method has no interval or no test."""
SHARES = (0.0, 0.01, 0.05, 0.5, 0.95, 0.99, 1.0)
Z = float(special.ndtri(0.975))
RESAMPLES, RESAMPLED = 400, 400
"""Of a bootstrap; and simulations that are resampled."""


def normal(difference: Floats) -> Result:
    """The central limit theorem with errors clustered by problem (Miller 2024)."""
    n, mean = difference.shape[-1], difference.mean(-1)
    error = difference.std(-1, ddof=1) / n**0.5
    with np.errstate(divide="ignore", invalid="ignore"):
        p = np.where(error > 0, 2 * special.ndtr(-np.abs(mean) / error), np.where(mean == 0, 1.0, 0.0))
    return mean - Z * error, mean + Z * error, p


def student(difference: Floats) -> Result:
    """The paired t test of the problems' means."""
    n, mean = difference.shape[-1], difference.mean(-1)
    error = difference.std(-1, ddof=1) / n**0.5
    half = special.stdtrit(n - 1, 0.975) * error
    with np.errstate(divide="ignore", invalid="ignore"):
        p = np.where(error > 0, 2 * special.stdtr(n - 1, -np.abs(mean) / error), np.where(mean == 0, 1.0, 0.0))
    return mean - half, mean + half, p


def bonett_price(difference: Floats) -> Result:
    """The adjusted Wald interval and test of Bonett and Price (2012): a problem better and one worse by 1 are added."""
    n, total = difference.shape[-1] + 2, difference.sum(-1)
    mean = total / n
    error = np.sqrt(np.maximum(((difference**2).sum(-1) + 2) / n - mean**2, 0) / n)
    return np.maximum(mean - Z * error, -1), np.minimum(mean + Z * error, 1), 2 * special.ndtr(-np.abs(mean) / error)


def ours(difference: Floats) -> Result:
    """`pipelines.base.intervals`."""
    return *intervals.difference_interval(difference), intervals.p_value(difference)


def sign_test(difference: Floats) -> Result:
    """The exact binomial test of the problems that differ: McNemar's where there is one answer to each."""
    better, worse = (difference > 1e-12).sum(-1), (difference < -1e-12).sum(-1)
    return None, None, np.minimum(1.0, 2 * special.bdtr(np.minimum(better, worse), better + worse, 0.5))


def tango(difference: Floats) -> Result:
    """Tango's score interval and McNemar's test (1998), of one answer to each problem."""
    n = difference.shape[-1]
    b, c = (difference > 0).sum(-1), (difference < 0).sum(-1)

    def statistic(delta: Floats) -> Floats:
        first = -b - c + (2 * n - b + c) * delta
        q = (np.sqrt(np.maximum(first**2 + 8 * n * c * delta * (1 - delta), 0)) - first) / (4 * n)
        variance = n * (2 * q + delta * (1 - delta))
        return (b - c - n * delta) / np.sqrt(np.maximum(variance, 1e-300))

    mean, ends = (b - c) / n, []
    for sign in (-1.0, 1.0):
        inside, outside = mean.copy(), np.full_like(mean, sign)
        for _ in range(50):
            middle = (inside + outside) / 2
            holds = np.abs(statistic(middle)) <= Z
            inside, outside = np.where(holds, middle, inside), np.where(holds, outside, middle)
        ends.append(np.where(np.abs(statistic(np.full_like(mean, sign * (1 - 1e-12)))) <= Z, sign, inside))
    with np.errstate(invalid="ignore"):
        return ends[0], ends[1], np.where(b + c > 0, 2 * special.ndtr(-np.abs(b - c) / np.sqrt(b + c)), 1.0)


def _categories(difference: Floats) -> tuple[Floats, Floats]:
    values = np.unique(difference.round(9))
    return values, np.stack([(difference.round(9) == v).sum(-1) for v in values], -1)


def _resampled(difference: Floats) -> tuple[Floats, Floats]:
    """Means and standard errors of the resamples: [simulations, resamples]."""
    values, counts = _categories(difference)
    n = difference.shape[-1]
    draw = np.random.default_rng(0)
    drawn = draw.multinomial(n, counts[:, None] / n, size=(len(counts), RESAMPLES)) / n
    means = drawn @ values
    return means, np.sqrt(np.maximum(drawn @ values**2 - means**2, 0) / (n - 1))


def percentile(difference: Floats) -> Result:
    """The percentile bootstrap over problems; p by inversion."""
    means, _ = _resampled(difference)
    low, high = np.quantile(means, [0.025, 0.975], axis=1)
    return low, high, np.minimum(1.0, 2 * np.minimum((means <= 0).mean(1), (means >= 0).mean(1)))


def studentised(difference: Floats) -> Result:
    """The studentised bootstrap (Efron and Tibshirani 1993): equal-tailed interval, two-sided p; resamples without spread are extreme."""
    means, errors = _resampled(difference)
    mean = difference.mean(-1)
    error = difference.std(-1, ddof=1) / difference.shape[-1] ** 0.5
    shift = means - mean[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        t = np.where(errors > 0, shift / errors, np.where(np.abs(shift) < 1e-12, 0, np.sign(shift) * np.inf))
        observed = np.where(error > 0, np.abs(mean) / error, np.where(mean == 0, 0, np.inf))
    p = (1 + (np.abs(t) >= observed[:, None] - 1e-12).sum(1)) / (RESAMPLES + 1)
    from_low, from_high = np.quantile(t, [0.025, 0.975], axis=1, method="nearest")
    with np.errstate(invalid="ignore"):
        low, high = mean - from_high * error, mean - from_low * error
    return np.nan_to_num(low, nan=0.0, neginf=-1), np.nan_to_num(high, nan=0.0, posinf=1), p


def sign_flips(difference: Floats) -> Result:
    """The permutation test that flips the sign of each problem's difference."""
    values, counts = _categories(np.abs(difference))
    draw = np.random.default_rng(0)
    flipped = (
        2 * draw.binomial(counts[:, None], 0.5, size=(len(counts), RESAMPLES, len(values))) - counts[:, None]
    ) @ values
    beyond = np.abs(flipped) >= np.abs(difference.sum(-1))[:, None] - 1e-9
    return None, None, (1 + beyond.sum(1)) / (RESAMPLES + 1)


CLOSED = {
    "**score test, 3 pseudo-problems**": ours,
    "Bonett-Price": bonett_price,
    "Tango, McNemar": tango,
    "exact sign test": sign_test,
    "Student's t": student,
    "normal (Miller)": normal,
}
DRAWN = {"studentised bootstrap": studentised, "percentile bootstrap": percentile, "sign flips": sign_flips}
ONE_ANSWER = ("Tango, McNemar",)


def _rates(draw: np.random.Generator, share: float, shape: tuple[int, int]) -> Floats:
    return draw.beta(share, 1 - share, shape) if 0 < share < 1 else np.full(shape, share)


def _flipped(draw: np.random.Generator, share: float, shape: tuple[int, int]) -> tuple[Floats, Floats]:
    old = (draw.random(shape) < share).astype(float)
    return old, np.where(draw.random(shape) < 0.05, draw.random(shape) < share, old)


def _lost(rate: float) -> Callable[[np.random.Generator, float, tuple[int, int]], tuple[Floats, Floats]]:
    def population(draw: np.random.Generator, share: float, shape: tuple[int, int]) -> tuple[Floats, Floats]:
        old = _rates(draw, share, shape)
        return old, np.where(draw.random(shape) < rate, 0.0, old)

    return population


def _learned(part: float) -> Callable[[np.random.Generator, float, tuple[int, int]], tuple[Floats, Floats]]:
    def population(draw: np.random.Generator, share: float, shape: tuple[int, int]) -> tuple[Floats, Floats]:
        old = _rates(draw, share, shape)
        return old, old + part * (1 - old)

    return population


POPULATIONS = {
    "equal": (lambda draw, share, shape: (rates := _rates(draw, share, shape), rates), lambda share: 0.0),
    "independent": (
        lambda draw, share, shape: (_rates(draw, share, shape), _rates(draw, share, shape)),
        lambda share: 0.0,
    ),
    "few differ": (_flipped, lambda share: 0.0),
    "a tenth learned": (_learned(0.1), lambda share: 0.1 * (1 - share)),
    "most learned": (_learned(0.8), lambda share: 0.8 * (1 - share)),
    "one in 20 lost": (_lost(0.05), lambda share: -0.05 * share),
    "one in 100 lost": (_lost(0.01), lambda share: -0.01 * share),
}
"""Name → (pass rates of both models [simulations, problems], true difference)."""


@dataclass
class Tally:
    """What a method came to over the populations."""

    covered: list[float] = field(default_factory=list)
    width: list[float] = field(default_factory=list)
    level: list[float] = field(default_factory=list)
    power: list[float] = field(default_factory=list)
    contradiction: list[float] = field(default_factory=list)

    def add(self, result: Result, truth: float) -> None:
        """One population."""
        low, high, p = result
        if low is not None and high is not None:
            self.covered.append(float(((low <= truth + 1e-9) & (high >= truth - 1e-9)).mean()))
            self.width.append(float((high - low).mean()))
        if p is not None:
            (self.power if truth else self.level).append(float((p < 0.05).mean()))
        if low is not None and high is not None and p is not None:
            self.contradiction.append(float(((p < 0.05) != ((low > 0) | (high < 0))).mean()))

    def cells(self) -> list[str]:
        """For a table."""
        covered = [f"{min(self.covered):.3f}", f"{np.mean(self.covered):.3f}"] if self.covered else ["", ""]
        width = f"{np.mean(self.width):.3f}" if self.width else ""
        clash = f"{100 * max(self.contradiction):.1f} %" if self.contradiction else ""
        return [*covered, width, f"{max(self.level):.3f}", f"{np.mean(self.power):.3f}", clash]


def differences(n: int, answers: int, simulations: int) -> Iterator[str]:
    """Lines of the table of paired differences."""
    methods = {**CLOSED, **DRAWN}
    tallies = {name: Tally() for name in methods if answers == 1 or name not in ONE_ANSWER}
    draw = np.random.default_rng([n, answers])
    for population, true in POPULATIONS.values():
        for share in SHARES:
            old, new = population(draw, share, (simulations, n))
            difference = np.asarray(draw.binomial(answers, new) - draw.binomial(answers, old)) / answers
            for name, tally in tallies.items():
                tally.add(methods[name](difference[:RESAMPLED] if name in DRAWN else difference), true(share))
    for name, tally in tallies.items():
        yield _line([str(n), str(answers), name, *tally.cells()])


def jeffreys(values: Floats) -> tuple[Floats, Floats]:
    """Jeffreys' interval of one verdict a problem."""
    n, count = values.shape[-1], values.sum(-1)
    low = np.where(count > 0, special.betaincinv(count + 0.5, n - count + 0.5, 0.025), 0.0)
    return low, np.where(count < n, special.betaincinv(count + 0.5, n - count + 0.5, 0.975), 1.0)


def clopper_pearson(values: Floats) -> tuple[Floats, Floats]:
    """The exact interval of one verdict a problem."""
    n, count = values.shape[-1], values.sum(-1)
    low = np.where(count > 0, special.betaincinv(np.maximum(count, 1e-9), n - count + 1, 0.025), 0.0)
    return low, np.where(count < n, special.betaincinv(count + 1, np.maximum(n - count, 1e-9), 0.975), 1.0)


def our_share(values: Floats) -> tuple[Floats, Floats]:
    """`pipelines.base.intervals.share_interval`."""
    low, high = zip(*(intervals.share_interval(row) for row in values), strict=True)
    return np.array(low), np.array(high)


def _ends(method: Callable[[Floats], Result]) -> Callable[[Floats], tuple[Floats, Floats]]:
    def ends(values: Floats) -> tuple[Floats, Floats]:
        low, high, _ = method(values)
        assert low is not None and high is not None
        return low, high

    return ends


SHARE_METHODS = {
    "**Wilson, effective number**": our_share,
    "Jeffreys": jeffreys,
    "Clopper-Pearson": clopper_pearson,
    "Student's t": _ends(student),
    "percentile bootstrap": _ends(percentile),
}


def shares(n: int, answers: int, simulations: int) -> Iterator[str]:
    """Lines of the table of single shares: rates between problems from alike to either 0 or 1."""
    draw = np.random.default_rng([n, answers, 1])
    covered: dict[str, list[float]] = {name: [] for name in SHARE_METHODS}
    width: dict[str, list[float]] = {name: [] for name in SHARE_METHODS}
    for share in SHARES:
        for alike in (0.3, 1.0, 5.0):
            shape = (simulations, n)
            rate = draw.beta(alike * share, alike * (1 - share), shape) if 0 < share < 1 else np.full(shape, share)
            values = np.asarray(draw.binomial(answers, rate)) / answers
            for name, method in SHARE_METHODS.items():
                low, high = method(values[:RESAMPLED] if name == "percentile bootstrap" else values)
                covered[name].append(float(((low <= share + 1e-9) & (high >= share - 1e-9)).mean()))
                width[name].append(float((high - low).mean()))
    for name, each in covered.items():
        cells = [f"{min(each):.3f}", f"{np.mean(each):.3f}", f"{np.mean(width[name]):.3f}"]
        yield _line([str(n), str(answers), name, *cells])


def lengths(n: int, simulations: int) -> Iterator[str]:
    """Lines of the table of mean lengths: log-normal ones, rounded to whole tokens."""
    draw = np.random.default_rng([n, 2])
    for spread in (0.3, 0.8):
        values = np.round(draw.lognormal(np.log(100), spread, (simulations, n)))
        truth = 100 * np.exp(spread**2 / 2)
        own = [intervals.mean_interval(row, least=0.0) for row in values]
        drawn = values[:, draw.integers(0, n, (RESAMPLES, n))].mean(-1)
        ends = {
            "**Student's t, 3 pseudo-problems**": np.array(own).T,
            "Student's t": np.array(student(values)[:2]),
            "percentile bootstrap": np.quantile(drawn, [0.025, 0.975], axis=1),
        }
        for name, (low, high) in ends.items():
            held = float(((low <= truth) & (truth <= high)).mean())
            yield _line([str(n), f"{spread}", name, f"{held:.3f}", f"{(high - low).mean():.1f}"])


def worked() -> Iterator[str]:
    """Lines of the table of single cases."""
    cases = {
        "249 wins, one tie": [1.0] * 249 + [0.0],
        "0 % after 95 %, 60 problems": [-1.0] * 57 + [0.0] * 3,
        "one answer of 2,000 problems changed": [1.0] + [0.0] * 1999,
        "+100 points on each of 5 problems": [1.0] * 5,
        "+100 points on each of 60 problems": [1.0] * 60,
        "no change on 250 problems": [0.0] * 250,
        "+1 of 8 answers on each of 20 problems": [0.125] * 20,
    }
    for name, rows in cases.items():
        difference = np.array(rows)
        low, high = intervals.difference_interval(difference)
        p, exact = float(intervals.p_value(difference)), float(np.asarray(sign_test(difference)[2]))
        ends = f"{100 * difference.mean():+.2f} [{100 * low:+.2f}, {100 * high:+.2f}]"
        yield _line([name, ends, f"{p:.2g}", f"{exact:.2g}"])


def exact_levels() -> Iterator[str]:
    """Lines of the table of exact one-sided levels with one answer to each problem, as parts of the level."""
    shown = (0.02, 0.1, 0.3, 0.6, 1.0)
    for level in (0.05, 0.025, 0.05 / 60):
        for n in (20, 60, 250):
            parts = []
            for discordant in shown:
                pairs = np.arange(n + 1)
                chance = stats.binom.pmf(pairs, n, discordant)
                promoted = 0.0
                for count, weight in zip(pairs, chance, strict=True):
                    wins = np.arange(count + 1)
                    z = (2 * wins - count) / np.sqrt(count + intervals.PSEUDO)
                    promoted += weight * float(stats.binom.pmf(wins, count, 0.5)[special.ndtr(-z) <= level].sum())
                parts.append(f"{promoted / level:.2f}")
            yield _line([f"{level:.2g}", str(n), *parts])


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _table(title: str, header: list[str], lines: Iterator[str]) -> None:
    print(f"\n{title}\n\n{_line(header)}\n{_line(['---'] * len(header))}", flush=True)
    for line in lines:
        print(line, flush=True)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[5, 10, 20, 60, 250, 1000])
    parser.add_argument("--simulations", type=int, default=6000)
    arguments = parser.parse_args()
    sizes = [(n, answers, min(arguments.simulations, 2_000_000 // n)) for n in arguments.sizes for answers in (1, 8)]
    _table("Cases", ["case", "points", "p", "exact sign test"], worked())
    header = ["problems", "answers", "method", "least coverage", "mean", "width", "level", "power", "contradictions"]
    _table("Paired differences", header, (line for size in sizes for line in differences(*size)))
    _table("Shares", header[:6], (line for n, k, count in sizes for line in shares(n, k, min(count, 3000))))
    header = ["problems", "spread", "method", "coverage", "width"]
    _table("Lengths", header, (line for n in arguments.sizes if n <= 250 for line in lengths(n, 2000)))
    header = ["level", "problems", *(f"{share} discordant" for share in (0.02, 0.1, 0.3, 0.6, 1.0))]
    _table("Exact one-sided levels, as parts of the level", header, exact_levels())


if __name__ == "__main__":
    main()
