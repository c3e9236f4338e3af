"""Sampler-trainer mismatch: how far the two log-probabilities of the sampled tokens differ, and whether that is a fault.

Let d = log pi_trainer - log pi_sampler of a sampled token, before the first update. With the same weights d is rounding alone:
centred near 0 and spread evenly over rows and positions. In float32 the largest |d| is a test by itself. In bfloat16 one token
in ten thousand is off by half a nat in a healthy run, so what is judged is the distribution: mean and 99.9th percentile of
|d|, the estimate k3 = mean(exp(d) - 1 - d) of KL(sampler || trainer), the effective sample size of the importance weights
exp(d), and structure: one row, one position or one prompt far worse than the others, or a mean that grows from step to step
(a sampler that keeps old weights).

A step may compare a hundred tokens, whose 99.9th percentile is their largest and whose k3 one token decides. So a statistic over
its limit is a fault where it is over it by more than chance: by `STANDARD_ERRORS` of its own, with the tokens of a context as one
observation. With tens of thousands of tokens that is the limit itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from pipelines.base.errors import Interrupted
from pipelines.contract.sampling import Mismatch

LARGEST_LOG_WEIGHT = 20.0
"""exp(d) is taken of at most this."""


@dataclass(frozen=True)
class Bounds:
    """Limits on the mismatch of one step; above them (below, for `ess`) the run stops or warns."""

    max: float
    """Largest |d|, nats."""
    p999: float
    """99.9th percentile of |d|, nats."""
    mean: float
    """Mean |d|, nats."""
    kl: float
    """k3 estimate of KL(sampler || trainer), nats a token."""
    ess: float
    """Effective sample size of the token weights, as a share of the tokens."""


BOUNDS = {
    "float32": Bounds(max=1e-3, p999=1e-3, mean=1e-3, kl=1e-3, ess=0.99),
    "bfloat16": Bounds(max=3.0, p999=0.75, mean=0.07, kl=0.005, ess=0.985),
}
"""By compute dtype."""
STRUCTURE_RATIO = 6.0
"""A row, position or prompt whose mean |d| is this many times the others' is a fault, once it is also over the mean's bound.

Rounding alone passes the ratio: |d| is near 0 where the model is certain of its tokens, and as large as anywhere where it is not.
"""
STRUCTURE_CONTEXTS = 8
"""Different contexts a row, position or prompt needs before it is judged.

Tokens drawn in one context share its rounding (its hidden state and its normaliser), so they count once: the first tokens of a
group's rows are one observation, however many rows there are.
"""
STANDARD_ERRORS = 3.0
"""How far over its limit a statistic must be."""
TAIL = 1e-3
"""Share of the tokens above their 99.9th percentile."""
CONTEXT_BASE = 0x5851F42D4C957F2D
"""Base of the polynomial hash, modulo 2^64, that tells contexts apart."""
GROWTH = 4.0
"""Mean |d| over the last steps against the first ones; more is growth, once it is over a quarter of the mean's bound."""
WINDOW = 3
"""Steps that the growth compares."""


@dataclass
class Tokens:
    """What is compared, one entry per sampled token."""

    difference: Tensor
    """float32 [N], trainer minus sampler, nats; infinite where one of them is NaN."""
    row: Tensor
    """int64 [N], row of the step."""
    position: Tensor
    """int64 [N], column in the row."""
    token: Tensor
    """int64 [N], token id."""
    sampled: Tensor
    """float32 [N], what the sampler reported."""
    group: Tensor
    """int64 [N], the row's group."""
    offset: Tensor
    """int64 [N], place among the row's sampled tokens, from 0."""

    @classmethod
    def of(cls, columns: dict[str, Any], logp: Tensor, tokens: Tensor, rows: Tensor) -> Tokens:
        """The on-policy tokens of some rows.

        Args:
            columns: the rows' columns, with `logp_old` or `logp_sampler`.
            logp: float32 [B, T], the trainer's.
            tokens: int64 [B, T].
            rows: int64 [B], the rows' places in the step.
        """
        mask = columns["mask"] & columns["on_policy"][:, None] & columns["sampled_now"]
        sampled = columns.get("logp_sampler", columns["logp_old"])
        row, position = mask.nonzero(as_tuple=True)
        return cls(
            difference=(logp.detach() - sampled)[mask].nan_to_num(nan=float("inf")),
            row=rows[row],
            position=position,
            token=tokens[mask],
            sampled=sampled[mask],
            group=columns["group"][row],
            offset=(mask.cumsum(1) - 1)[mask],
        )

    def contexts(self) -> Tensor:
        """int64 [N]: equal for tokens of a group whose rows sampled the same tokens before them."""
        powers = torch.full((int(self.offset.max()) + 2,), CONTEXT_BASE).cumprod(0)
        parts = (self.token + 1) * powers[self.offset + 1]
        before = parts.cumsum(0) - parts
        starts = torch.cat([torch.ones(1, dtype=torch.bool), self.row[1:] != self.row[:-1]])
        return before - before[starts][starts.cumsum(0) - 1] + (self.group + 1) * CONTEXT_BASE

    @classmethod
    def join(cls, parts: Iterable[Tokens]) -> Tokens:
        """The tokens of several parts, in reading order, on the CPU."""
        all_parts = list(parts)
        joined = cls(
            **{name: torch.cat([getattr(part, name) for part in all_parts]).cpu() for name in cls.__dataclass_fields__}
        )
        order = (joined.row * (1 + joined.position.max() if len(joined.position) else 1) + joined.position).argsort()
        return cls(**{name: getattr(joined, name)[order] for name in cls.__dataclass_fields__})


@dataclass
class MismatchMonitor:
    """Judges each step's mismatch; remembers the steps' means.

    Args:
        settings: the recipe's section; its limits replace those of the dtype.
        dtype: compute dtype, "float32" or "bfloat16".
    """

    settings: Mismatch
    dtype: str
    first_means: list[float] = field(default_factory=list)
    last_means: list[float] = field(default_factory=list)

    @property
    def bounds(self) -> Bounds:
        """The limits in force."""
        default = BOUNDS[self.dtype]
        chosen = {name: getattr(self.settings, name) for name in Bounds.__dataclass_fields__}
        return Bounds(**{name: getattr(default, name) if v is None else v for name, v in chosen.items()})

    def judge(self, tokens: Tokens) -> tuple[dict[str, float], str | None]:
        """Measure a step.

        Returns:
            metrics, and a warning where the recipe says warn.

        Raises:
            Interrupted: a limit is broken and the recipe says stop; the message says which and where.
        """
        if not len(tokens.difference):
            return {}, None
        metrics = measure(tokens.difference)
        mean = metrics["mismatch/mean"]
        if len(self.first_means) < WINDOW:
            self.first_means.append(mean)
        self.last_means = [*self.last_means, mean][-WINDOW:]
        fault = self._fault(tokens, metrics)
        if fault is None:
            return metrics, None
        text = (
            f"sampler and trainer disagree: {fault}. Something differs between the two: weights, temperature, masks or "
            "template. rlvr.mismatch.on_breach: warn continues regardless; rlvr.mismatch also takes other limits."
        )
        if self.settings.on_breach == "stop":
            raise Interrupted(text)
        return metrics, text

    def _fault(self, tokens: Tokens, metrics: dict[str, float]) -> str | None:
        """Which limit is broken, in words; None where none is."""
        bounds, size = self.bounds, tokens.difference.abs()
        if metrics["mismatch/max"] > bounds.max:
            return (
                f"{_first(tokens, bounds.max)} (limit {bounds.max:g}; {int((size > bounds.max).sum())} tokens over it)"
            )
        contexts = tokens.contexts()
        for name, values, limit in _averages(tokens.difference, bounds):
            if exceeds(values, contexts, limit):
                worst = _first(tokens, float(size.max()) * (1 - 1e-6))
                value, unit = metrics[f"mismatch/{name}"], "" if name == "ess" else " nats"
                return f"{name} is {value:.3g}{unit} (limit {getattr(bounds, name):g}); worst: {worst}"
        for name, index in (("row", tokens.row), ("position", tokens.offset), ("group", tokens.group)):
            found_outlier = outlier(size, index, contexts, bounds.mean)
            if found_outlier is not None:
                return f"{name} {found_outlier[0]} is off by {found_outlier[1]:.3g} nats a token, the others by {found_outlier[2]:.3g}"
        return self._growth(bounds)

    def _growth(self, bounds: Bounds) -> str | None:
        first, last = _median(self.first_means), _median(self.last_means)
        if len(self.first_means) < WINDOW or last <= max(GROWTH * first, bounds.mean / 4):
            return None
        return (
            f"the mean difference has grown from {first:.3g} to {last:.3g} nats a token, as it does when the sampler "
            "keeps old weights"
        )

    def state_dict(self) -> dict[str, Any]:
        """The steps' means."""
        return {"first_means": self.first_means, "last_means": self.last_means}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up where `state_dict` left off."""
        self.first_means, self.last_means = list(state["first_means"]), list(state["last_means"])


def measure(difference: Tensor) -> dict[str, float]:
    """Metrics of the differences, float [N] in nats.

    >>> {k: round(v, 4) for k, v in measure(torch.tensor([0.1, -0.1, 0.0, 0.0])).items()}
    {'mismatch/max': 0.1, 'mismatch/p999': 0.1, 'mismatch/mean': 0.05, 'mismatch/kl': 0.0025, 'mismatch/ess': 0.995}
    """
    d = difference.double()
    size, weight = d.abs(), d.clamp(max=LARGEST_LOG_WEIGHT).exp()
    return {
        "mismatch/max": float(size.max()),
        "mismatch/p999": float(size.kthvalue(max(1, -(-999 * len(size) // 1000))).values),
        "mismatch/mean": float(size.mean()),
        "mismatch/kl": float((weight - 1 - d).mean()),
        "mismatch/ess": float(weight.sum().square() / (len(weight) * weight.square().sum())),
    }


def _averages(difference: Tensor, bounds: Bounds) -> Iterator[tuple[str, Tensor, float]]:
    """The statistics with a limit as averages over tokens: name, float64 [N], and the limit on their mean."""
    d = difference.double()
    weight = d.clamp(max=LARGEST_LOG_WEIGHT).exp()
    yield "p999", (d.abs() > bounds.p999).double(), TAIL
    yield "mean", d.abs(), bounds.mean
    yield "kl", weight - 1 - d, bounds.kl
    yield "ess", (weight / weight.mean() - 1).square(), 1 / bounds.ess - 1


def exceeds(values: Tensor, contexts: Tensor, limit: float) -> bool:
    """Whether a mean is over its limit by more than `STANDARD_ERRORS`, which are those of clustered observations.

    Args:
        values: float64 [N].
        contexts: int64 [N], what each token was drawn in; one context alone shows no spread and exceeds nothing.

    >>> rare, contexts = torch.zeros(200).double(), torch.arange(200)
    >>> rare[0] = 1.0
    >>> exceeds(rare, contexts, 1e-3), exceeds(rare + 0.01, contexts, 1e-3)
    (False, False)
    >>> exceeds(torch.full((200,), 0.01).double(), contexts, 1e-3)
    True
    """
    mean = values.mean()
    if mean <= limit:
        return False
    cluster = contexts.unique(return_inverse=True)[1]
    count = int(cluster.max()) + 1
    if count < 2:
        return False
    sums = torch.zeros(count, dtype=torch.float64).scatter_add_(0, cluster, values - mean)
    error = float((sums.square().sum() * count / (count - 1)).sqrt()) / len(values)
    return float(mean) - STANDARD_ERRORS * error > limit


def outlier(size: Tensor, index: Tensor, contexts: Tensor, least: float) -> tuple[int, float, float] | None:
    """The index whose mean is far above the others': (index, its mean, the others' mean); None where there is none.

    Means are over contexts, each with the mean of its tokens.

    Args:
        size: float [N], |d|.
        index: int64 [N], what each token belongs to.
        contexts: int64 [N], what each token was drawn in.
        least: a mean that is not over this by `STANDARD_ERRORS` is never an outlier.
    """
    values, place = index.unique(return_inverse=True)
    drawn_in = contexts.unique(return_inverse=True)[1]
    clusters = int(drawn_in.max()) + 1
    # one number for each pair: torch's unique over rows of two takes 14 times as long
    pairs, pair = (place * clusters + drawn_in).unique(return_inverse=True)
    of_pair = torch.zeros(len(pairs), dtype=torch.float64).scatter_add_(0, pair, size.double()) / torch.bincount(pair)
    owner = pairs // clusters
    total = torch.zeros(len(values), dtype=torch.float64).scatter_add_(0, owner, of_pair)
    count = torch.bincount(owner, minlength=len(values))
    others = (total.sum() - total) / (count.sum() - count).clamp(min=1)
    mean = total / count
    spread = torch.zeros(len(values), dtype=torch.float64).scatter_add_(0, owner, (of_pair - mean[owner]).square())
    surely = mean - STANDARD_ERRORS * (spread / (count * (count - 1)).clamp(min=1)).sqrt()
    suspect = (
        (count >= STRUCTURE_CONTEXTS) & (surely > least) & (mean > STRUCTURE_RATIO * others) & (count < count.sum())
    )
    if not suspect.any():
        return None
    worst = int(torch.where(suspect, mean, -1.0).argmax())
    return int(values[worst]), float(mean[worst]), float(others[worst])


def _first(tokens: Tokens, over: float) -> str:
    """The first token in reading order whose |d| is over a limit, in words."""
    first = int((tokens.difference.abs() > over).nonzero()[0])
    sampled = float(tokens.sampled[first])
    return (
        f"row {int(tokens.row[first])}, position {int(tokens.position[first])}, token id {int(tokens.token[first])}: the sampler's "
        f"log-prob is {sampled:.5f}, the trainer's {sampled + float(tokens.difference[first]):.5f}"
    )


def _median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2] if values else 0.0
