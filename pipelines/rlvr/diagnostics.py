"""Metrics that every method shares, computed from the columns alone."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pipelines.data.records import Role, Stop, Trajectory, by_group
from pipelines.engine.layout import Layout, row_ends
from pipelines.rlvr.ops import homogeneous
from pipelines.rlvr.ops_turns import turns_taken

if TYPE_CHECKING:
    from pipelines.engine.parallel import World


@dataclass(frozen=True, slots=True)
class Outcome:
    """What is reported of a rollout: without its tokens, so that all processes can know it of every one."""

    uid: str
    group: int
    source: str
    score: float | None
    correct: bool | None
    propensity: float | None
    sampled_count: int
    stop: Stop
    status: str
    player: int | None
    opponent: str | None
    components: dict[str, float]
    paid: tuple[Any, ...]
    """What it is paid in all, to tell rows apart."""
    surprise: float
    """Sum of -log-probability over the tokens that the policy drew, nats."""
    drawn: int
    """Tokens in that sum."""

    @classmethod
    def of(cls, row: Trajectory) -> Outcome:
        """The outcome of a trajectory."""
        pairs = zip(row.logp_old, row.role, strict=True)
        logp = [value for value, role in pairs if role == Role.POLICY and math.isfinite(value)]
        return cls(
            row.uid, row.group, row.source, row.score, row.correct, row.propensity, row.sampled_count, row.stop, row.status, row.player,
            row.opponent, row.components, _paid(row), -sum(logp), len(logp),
        )  # fmt: skip


def of_rollouts(trajectories: list[Outcome]) -> dict[str, float]:
    """Rewards, lengths, stops and statuses of everything sampled in the step; without rows, their number alone."""
    count = len(trajectories)
    if not count:
        return {"rollout/rows": 0.0, "rollout/length_mean": 0.0}
    scored = [t for t in trajectories if t.score is not None]
    lengths = torch.tensor([t.sampled_count for t in trajectories], dtype=torch.float32)
    metrics = {
        "reward/mean": sum(float(t.score or 0) for t in scored) / max(1, len(scored)),
        "reward/correct": sum(bool(t.correct) for t in scored) / max(1, len(scored)),
        "reward/group_std": _group_std(scored),
        "reward/equal_share": _equal_share(scored),
        "reward/unscored_share": (count - len(scored)) / count,
        "rollout/rows": float(count),
        "rollout/length_mean": float(lengths.mean()),
        "rollout/length_max": float(lengths.max()),
        "rollout/truncated_share": sum(t.stop == Stop.LENGTH for t in trajectories) / count,
        "rollout/error_share": sum(t.stop == Stop.ERROR for t in trajectories) / count,
    }
    if drawn := sum(t.drawn for t in trajectories):
        # An unbiased estimate of the entropy; unlike that of a forward pass it is known for a step that trains on nothing.
        metrics["rollout/entropy"] = sum(t.surprise for t in trajectories) / drawn
    metrics |= {f"status/{name}": 0.0 for name in ("timed_out", "verifier_failed")}
    for status, rows in Counter(t.status for t in trajectories).items():
        metrics[f"status/{status}"] = rows / count
    seats = sorted({t.player for t in scored if t.player is not None})
    for seat in seats if len(seats) > 1 else ():
        own = [float(t.score or 0) for t in scored if t.player == seat]
        metrics[f"reward/player_{seat}"] = sum(own) / len(own)
    for name in sorted({t.opponent for t in scored if t.opponent is not None}):
        against = [t for t in scored if t.opponent == name]
        metrics[f"reward/against_{name}"] = sum(float(t.score or 0) for t in against) / len(against)
        metrics[f"reward/won_against_{name}"] = sum(bool(t.correct) for t in against) / len(against)
    names = sorted({name for t in scored for name in t.components})
    if names != ["verifier"]:
        for name in names:
            values = [t.components[name] for t in scored if name in t.components]
            metrics[f"reward_component/{name.replace('/', '_')}"] = sum(values) / len(values)
            metrics[f"reward_component_std/{name.replace('/', '_')}"] = _group_std(scored, name)
    return metrics


def _group_std(scored: list[Outcome], component: str | None = None) -> float:
    """Standard deviation (of the population) of the scores in a group, mean over groups; 0 where nothing is scored.

    Args:
        component: of a part of the score instead, over the groups that have it.
    """
    groups = []
    for rows in by_group(scored).values():
        values = [t.score if component is None else t.components.get(component) for t in rows]
        if known := [float(value) for value in values if value is not None]:
            groups.append(torch.tensor(known))
    return sum(float(values.std(correction=0)) for values in groups) / max(1, len(groups))


def _equal_share(scored: list[Outcome]) -> float:
    """Share of the scored rows whose group has no difference in what is paid; 0 where nothing is scored.

    Groups of one have nothing to differ from; where there are no others, the whole step is one group.
    """
    groups = [rows for rows in by_group(scored).values() if len(rows) > 1] or ([scored] if scored else [])
    equal = sum(len(rows) for rows in groups if len({row.paid for row in rows}) == 1)
    return equal / max(1, sum(len(rows) for rows in groups))


def _paid(row: Trajectory) -> tuple[Any, ...]:
    """What a row is paid in all: its score to six digits, and where these are paid the rewards of its turns and tokens."""
    parts = (row.turn_reward or [], [value for value in row.token_reward or [] if value])
    return (round(float(row.score or 0), 6), *(tuple(part) if any(part) else () for part in parts))


def of_tries(trajectories: list[Trajectory]) -> dict[str, float]:
    """Rows, tokens and share of correct rows of what the curriculum tried out; nothing where it tried nothing out."""
    if not trajectories:
        return {}
    scored = [t for t in trajectories if t.score is not None]
    return {
        "tried/rows": float(len(trajectories)),
        "tried/tokens": float(sum(t.sampled_count for t in trajectories)),
        "tried/correct": sum(bool(t.correct) for t in scored) / max(1, len(scored)),
    }


def of_windows(trajectories: list[Trajectory], version: int, unfinished: int) -> dict[str, float]:
    """Ages, in optimizer updates, of the tokens of rows that were drawn in windows, and how many rows go on.

    Args:
        version: of the weights that sampled last.
        unfinished: rows that go on.
    """
    ages = [
        version - drawn_by
        for t in trajectories
        for drawn_by, role in zip(t.versions or [], t.role, strict=False)
        if role == Role.POLICY
    ]
    return {
        "window/unfinished_rows": float(unfinished),
        "window/age_mean": sum(ages) / max(1, len(ages)),
        "window/age_max": float(max(ages, default=0)),
    }


def of_columns(columns: dict[str, Any], world: World | None = None) -> dict[str, float]:
    """Signal: zero-variance groups, zero-advantage rows and tokens, size of advantages; where there are several, of all processes' rows."""
    scored, group = columns["scored"], columns["group"]
    zero_variance = homogeneous(columns["raw_reward"], group, scored)
    advantage, mask = columns["advantage"], columns["mask"]
    zero_advantage = (advantage == 0).all(1)
    sums = [
        torch.tensor(len(mask)), mask.sum(), scored.sum(), zero_variance.sum(), zero_advantage.sum(), ((advantage == 0) & mask).sum(),
        advantage.double().abs().sum(), (columns["reward"].double() * scored).sum(), (mask & columns["in_loss"][:, None]).sum(),
    ]  # fmt: skip
    total = torch.stack([value.double() for value in sums])
    rows, tokens, of_scored, *others = (total if world is None else world.total(total)).tolist()
    varied, row_zero, token_zero, size, reward, trained = others
    return {
        "signal/zero_variance_group_share": varied / rows,
        "signal/zero_advantage_row_share": row_zero / rows,
        "signal/zero_advantage_token_share": token_zero / max(1.0, tokens),
        "advantage/abs_mean": size / max(1.0, tokens),
        "reward/shaped_mean": reward / max(1.0, of_scored),
        "tokens/trained": trained,
    }


def changed(paid: str, before: dict[str, Any], after: dict[str, Any]) -> tuple[int, int]:
    """How many of the scored rows, of their turns or of their trained tokens a shaping or credit part changed, and how many there are.

    Args:
        paid: the column that it changes, which says what is counted: `reward` [B], `turn_reward` [B, S], `token_reward` or
            `advantage` [B, T], of which a token's `loss_share` counts as a part.
        before: the step's columns before the part; without `token_reward`, tokens were paid nothing.
        after: the columns after it.

    >>> columns = {"scored": torch.tensor([True, True, False])}
    >>> before, after = (columns | {"reward": torch.tensor(r)} for r in ([1.0, 0.0, 0.0], [1.0, 0.5, 0.0]))
    >>> changed("reward", before, after)
    (1, 2)
    """
    scored = after["scored"] if paid == "reward" else after["scored"][:, None]
    differs = (after[paid] != before.get(paid, 0.0)) & scored
    if paid == "reward":
        positions = scored
    elif paid == "turn_reward":
        positions = differs | turns_taken(after["turn"], after["mask"], after[paid].shape[1]) & scored
    else:
        positions = after["mask"] & scored
    if paid == "advantage":
        differs |= after["loss_share"] != before["loss_share"]
    return int((differs & positions).sum()), int(positions.sum())


def of_layouts(layouts: list[Layout], mask: Tensor, rows: Tensor) -> dict[str, float]:
    """What the forward pass of an update computes: its share of the rows' tokens, and the padding in it."""
    size, used = sum(layout.size for layout in layouts), sum(layout.used for layout in layouts)
    unshared = int((row_ends(mask[rows]) - 1).sum())
    shares = {"layout/computed_share": size / max(1, unshared), "layout/padding_share": 1 - used / max(1, size)}
    return shares | {"layout/tokens": float(size)}


class Ratios:
    """Collects ratios, entropies and KL divergences over the micro-batches of a step."""

    def __init__(self) -> None:
        self.log_ratio: list[Tensor] = []
        self.entropy: list[Tensor] = []
        self.divergence: list[Tensor] = []

    def add(self, columns: dict[str, Any], logp: Tensor, entropy: Tensor | None) -> None:
        """Add one micro-batch."""
        mask = columns["mask"]
        self.log_ratio.append((logp.detach() - columns["logp_old"])[mask])
        if entropy is not None:
            self.entropy.append(entropy.detach()[mask])
        if columns.get("logp_ref") is not None:
            d = (columns["logp_ref"] - logp.detach())[mask].clamp(-20, 20)
            self.divergence.append(d.exp() - d - 1)

    def extend(self, other: Ratios) -> None:
        """Append the values of another collection."""
        for name, values in vars(self).items():
            values.extend(getattr(other, name))

    def summary(self, world: World | None = None) -> dict[str, float]:
        """Range and mean of the ratio, mean entropy, mean KL (k3); where there are several, of all processes' micro-batches."""
        own = [_Sum.of([x.exp() for x in self.log_ratio]), _Sum.of(self.entropy), _Sum.of(self.divergence)]
        parts = [own] if world is None else world.gather(own)
        ratio, entropy, divergence = (_Sum.joined(of_one) for of_one in zip(*parts, strict=True))
        if not ratio.count:
            return {}
        out = {"ratio/min": ratio.low, "ratio/mean": ratio.mean, "ratio/max": ratio.high}
        if entropy.count:
            out["policy/entropy"] = entropy.mean
        if divergence.count:
            out["policy/kl_to_reference"] = divergence.mean
        return out


@dataclass(frozen=True, slots=True)
class _Sum:
    """Sum, number and range of some values."""

    count: int
    total: float
    low: float
    high: float

    @property
    def mean(self) -> float:
        return self.total / self.count

    @classmethod
    def of(cls, parts: list[Tensor]) -> _Sum:
        values = torch.cat(parts) if parts else torch.zeros(0)
        if not len(values):
            return cls(0, 0.0, math.inf, -math.inf)
        return cls(len(values), float(values.double().sum()), float(values.min()), float(values.max()))

    @classmethod
    def joined(cls, parts: Iterable[_Sum]) -> _Sum:
        each = list(parts)
        count, total = sum(part.count for part in each), sum(part.total for part in each)
        return cls(count, total, min(part.low for part in each), max(part.high for part in each))
