"""Metrics that every method shares, computed from the columns alone."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import torch
from torch import Tensor

from pipelines.data.records import Role, Stop, Trajectory, by_group
from pipelines.engine.layout import Layout, row_ends
from pipelines.rlvr.ops import homogeneous
from pipelines.rlvr.ops_turns import turns_taken


def of_rollouts(trajectories: list[Trajectory]) -> dict[str, float]:
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
    if (entropy := _sampled_entropy(trajectories)) is not None:
        metrics["rollout/entropy"] = entropy
    metrics |= {f"status/{name}": 0.0 for name in ("timed_out", "verifier_failed")}
    for status, rows in Counter(t.status for t in trajectories).items():
        metrics[f"status/{status}"] = rows / count
    seats = sorted({t.player for t in scored if t.player is not None})
    for seat in seats if len(seats) > 1 else ():
        own = [float(t.score or 0) for t in scored if t.player == seat]
        metrics[f"reward/player_{seat}"] = sum(own) / len(own)
    names = sorted({name for t in scored for name in t.components})
    if names != ["verifier"]:
        for name in names:
            values = [t.components[name] for t in scored if name in t.components]
            metrics[f"reward_component/{name.replace('/', '_')}"] = sum(values) / len(values)
            metrics[f"reward_component_std/{name.replace('/', '_')}"] = _group_std(scored, name)
    return metrics


def _group_std(scored: list[Trajectory], component: str | None = None) -> float:
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


def _equal_share(scored: list[Trajectory]) -> float:
    """Share of the scored rows whose group has no difference in what is paid; 0 where nothing is scored.

    Groups of one have nothing to differ from; where there are no others, the whole step is one group.
    """
    groups = [rows for rows in by_group(scored).values() if len(rows) > 1] or ([scored] if scored else [])
    equal = sum(len(rows) for rows in groups if len({_paid(row) for row in rows}) == 1)
    return equal / max(1, sum(len(rows) for rows in groups))


def _paid(row: Trajectory) -> tuple[Any, ...]:
    """What a row is paid in all: its score to six digits, and where these are paid the rewards of its turns and tokens."""
    parts = (row.turn_reward or [], [value for value in row.token_reward or [] if value])
    return (round(float(row.score or 0), 6), *(tuple(part) if any(part) else () for part in parts))


def _sampled_entropy(trajectories: list[Trajectory]) -> float | None:
    """Mean -log-probability of the tokens that the policy drew, nats: an unbiased estimate of its entropy; None where it drew none.

    Unlike the entropy of a forward pass it is known for every step, also for one that trains on nothing.
    """
    drawn = [
        logp
        for row in trajectories
        for logp, role in zip(row.logp_old, row.role, strict=True)
        if role == Role.POLICY and math.isfinite(logp)
    ]
    return -sum(drawn) / len(drawn) if drawn else None


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


def of_columns(columns: dict[str, Any]) -> dict[str, float]:
    """Signal: zero-variance groups, zero-advantage rows and tokens, size of advantages."""
    scored, group = columns["scored"], columns["group"]
    zero_variance = homogeneous(columns["raw_reward"], group, scored)
    advantage, mask = columns["advantage"], columns["mask"]
    zero_advantage = (advantage == 0).all(1)
    return {
        "signal/zero_variance_group_share": float(zero_variance.float().mean()),
        "signal/zero_advantage_row_share": float(zero_advantage.float().mean()),
        "signal/zero_advantage_token_share": float(((advantage == 0) & mask).sum() / mask.sum().clamp(min=1)),
        "advantage/abs_mean": float(advantage.abs().sum() / mask.sum().clamp(min=1)),
        "reward/shaped_mean": float((columns["reward"] * scored).sum() / scored.sum().clamp(min=1)),
        "tokens/trained": float((mask & columns["in_loss"][:, None]).sum()),
    }


def changed_share(paid: str, before: dict[str, Any], after: dict[str, Any]) -> float:
    """Share of the scored rows, of their turns or of their trained tokens that a shaping or credit part changed; 0 if it changed none.

    Args:
        paid: the column that it changes, which says of what the share is: `reward` [B], `turn_reward` [B, S], `token_reward` or
            `advantage` [B, T], of which a token's `loss_share` counts as a part.
        before: the step's columns before the part; without `token_reward`, tokens were paid nothing.
        after: the columns after it.

    >>> columns = {"scored": torch.tensor([True, True, False])}
    >>> before, after = (columns | {"reward": torch.tensor(r)} for r in ([1.0, 0.0, 0.0], [1.0, 0.5, 0.0]))
    >>> changed_share("reward", before, after)
    0.5
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
    return int((differs & positions).sum()) / max(1, int(positions.sum()))


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

    def summary(self) -> dict[str, float]:
        """Quantiles of the ratio, mean entropy, mean KL (k3)."""
        if not self.log_ratio or not sum(len(x) for x in self.log_ratio):
            return {}
        ratio = torch.cat(self.log_ratio).exp()
        out = {"ratio/min": float(ratio.min()), "ratio/mean": float(ratio.mean()), "ratio/max": float(ratio.max())}
        if self.entropy:
            out["policy/entropy"] = float(torch.cat(self.entropy).mean())
        if self.divergence:
            out["policy/kl_to_reference"] = float(torch.cat(self.divergence).mean())
        return out
