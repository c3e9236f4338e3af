"""What a reward model is worth on pairs that it was not trained on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

BINS = 10


def measures(
    chosen: Tensor, rejected: Tensor, chosen_length: Tensor, rejected_length: Tensor, prompts: Sequence[tuple[str, str]]
) -> dict[str, float]:
    """Metrics of scored pairs; those that the pairs cannot tell are left out.

    Args:
        chosen, rejected: rewards, float32 [P].
        chosen_length, rejected_length: tokens of the answers, float32 [P].
        prompts: of each pair those of its two answers, equal for equal prompts.

    Returns:
        accuracy: share of pairs whose chosen answer scores higher, a tie counts half; brier: mean (1 - p)^2 of p = sigmoid(difference);
        ece: expected calibration error over ten bins of the confidence max(p, 1 - p); length_correlation: Pearson's, of reward and length
        over all answers; longer_preferred: share of pairs of unequal length whose longer answer scores higher; std: of all rewards;
        std_within_prompt: root of the mean variance (ddof 0) of a prompt's distinct answers; mean: of all rewards.

    >>> prompts = [("a", "a"), ("b", "b")]
    >>> m = measures(torch.tensor([2.0, 0.0]), torch.tensor([0.0, 1.0]), torch.tensor([4.0, 2.0]), torch.tensor([2.0, 3.0]), prompts)
    >>> {name: round(value, 4) for name, value in m.items()}
    {'accuracy': 0.5, 'brier': 0.2743, 'ece': 0.4251, 'margin': 0.5, 'mean': 0.75, 'std': 0.8292, 'std_within_prompt': 0.7906,
    'length_correlation': 1.0, 'longer_preferred': 1.0}
    """
    difference = (chosen - rejected).double()
    won = 0.5 * (difference > 0).double() + 0.5 * (difference >= 0).double()
    p = torch.sigmoid(difference)
    rewards = torch.cat([chosen, rejected]).double()
    lengths = torch.cat([chosen_length, rejected_length]).double()
    metrics = {
        "accuracy": float(won.mean()),
        "brier": float((1 - p).square().mean()),
        "ece": calibration_error(p, won),
        "margin": float(difference.mean()),
        "mean": float(rewards.mean()),
        "std": float(rewards.std(correction=0)),
        "std_within_prompt": _within(chosen, rejected, prompts),
    }
    if rewards.std() > 0 and lengths.std() > 0:
        metrics["length_correlation"] = float(torch.corrcoef(torch.stack([rewards, lengths]))[0, 1])
    unequal = chosen_length != rejected_length
    if unequal.any():
        longer = torch.where(chosen_length > rejected_length, difference, -difference)[unequal]
        metrics["longer_preferred"] = float((longer > 0).double().mean())
    return metrics


def calibration_error(p: Tensor, won: Tensor) -> float:
    """Expected calibration error: mean over pairs of |accuracy - confidence| of the pair's bin.

    Args:
        p: probability that the chosen answer wins, [P].
        won: 1 where it scores higher, 0.5 at a tie, [P].
    """
    confidence = torch.maximum(p, 1 - p)
    position = ((confidence - 0.5) * 2 * BINS).long().clamp(max=BINS - 1)
    error = 0.0
    for each in position.unique().tolist():
        inside = position == each
        error += float(inside.double().mean()) * abs(float((won[inside] - confidence[inside]).mean()))
    return error


def _within(chosen: Tensor, rejected: Tensor, prompts: Sequence[tuple[str, str]]) -> float:
    by_prompt: dict[str, list[float]] = {}
    for asked, *rewards in zip(prompts, chosen.tolist(), rejected.tolist(), strict=True):
        for prompt, reward in zip(asked, rewards, strict=True):
            by_prompt.setdefault(prompt, []).append(reward)
    variances = [float(torch.tensor(v, dtype=torch.float64).unique().var(correction=0)) for v in by_prompt.values()]
    return float((sum(variances) / len(variances)) ** 0.5)


def text(name: str, about: dict[str, Any], metrics: dict[str, float], of: str = "pairs") -> str:
    """The card, as markdown; `of` says what was held out."""
    lines = [f"# Reward model: {name}", "", *(f"- {key}: {value}" for key, value in about.items())]
    if metrics:
        lines += ["", f"| held-out {of} | |", "|---|---|", *(f"| {k} | {v:.4f} |" for k, v in metrics.items())]
    return "\n".join(lines) + "\n"
