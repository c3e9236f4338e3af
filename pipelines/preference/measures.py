"""What a step of a preference stage reports, summed over its forward passes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from pipelines.data.pairs import SHARE


def chosen(columns: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
    """(log-prob, length) of the chosen answers, or of the desirable ones; [n] each."""
    if "desirable" in columns:
        wanted = columns["desirable"]
        return columns["logp"][wanted], columns["length"][wanted]
    return columns["chosen_logp"], columns["chosen_length"]


def rejected(columns: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
    """The same of the others."""
    if "desirable" in columns:
        wanted = ~columns["desirable"]
        return columns["logp"][wanted], columns["length"][wanted]
    return columns["rejected_logp"], columns["rejected_length"]


def log_ratios(columns: Mapping[str, Any]) -> tuple[Tensor, Tensor] | None:
    """Log-ratios to the reference of both sorts of answers; None without a reference."""
    if "desirable" in columns:
        if "logp_ref" not in columns:
            return None
        ratio = columns["logp"] - columns["logp_ref"]
        return ratio[columns["desirable"]], ratio[~columns["desirable"]]
    if "chosen_logp_ref" not in columns:
        return None
    return columns["chosen_logp"] - columns["chosen_logp_ref"], columns["rejected_logp"] - columns["rejected_logp_ref"]


def idealised(lead: Tensor, share: Tensor, beta: float) -> Tensor:
    """Whether the best policy of the KL-regularised objective, which DPO's loss aims at, gives the chosen answer the larger probability.

    That policy's log-probabilities differ by the reference's difference and log(share / (1 - share)) / beta, the reward under which the
    preferences are Bradley and Terry's (the idealised ranking accuracy of Chen et al., 2405.19534). Where everybody agrees, that reward
    has no bound.

    Args:
        lead: log-probability of the chosen answer less that of the rejected one under the reference, [P].
        share: of those asked who preferred the chosen answer, above 0 and at most 1, [P].

    >>> idealised(torch.tensor([-5.0, -5.0, 5.0, -9.0]), torch.tensor([0.6, 0.7, 0.4, 1.0]), 0.1).tolist()
    [False, True, True, True]
    """
    return lead + torch.logit(share.double()) / beta > 0


RANKINGS = ("ranking", "ranking_per_token", "ranking_reference", "ranking_idealised")


@dataclass
class Tally:
    """Sums over the items of a step.

    The reward of an answer is beta times its log-ratio to the reference, or for a loss without reference beta times the mean
    log-probability of its tokens; beta is the loss's own, 1 where it has none.
    """

    count: int
    """Items of the step."""
    beta: float
    labels: bool
    sums: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Metric → (sum, weight)."""
    loss: float = 0.0
    sft: float = 0.0

    @torch.no_grad()
    def add(self, columns: Mapping[str, Any], losses: Tensor, sft: Tensor, loss: Tensor) -> None:
        """One forward pass.

        Args:
            losses: [n], of its items.
            sft: its part of the step's SFT term.
            loss: its part of the step's loss.
        """
        self.loss, self.sft = self.loss + float(loss), self.sft + float(sft)
        self._sum("loss/preference", losses)
        both, ratios = (chosen(columns), rejected(columns)), log_ratios(columns)
        rewards = []
        for name, place in (("chosen", 0), ("rejected", 1)):
            logp, length = both[place]
            self._sum(f"logp/{name}", logp)
            reward = self.beta * (logp / length.clamp(min=1) if ratios is None else ratios[place])
            rewards.append(reward)
            self._sum(f"rewards/{name}", reward)
            if ratios is not None:
                self._add(f"drift/{name}", float(ratios[place].sum()), float(length.sum()))
        if self.labels:
            self._of_labels(columns)
        else:
            self._sum("rewards/margin", rewards[0] - rewards[1])
            self._sum("accuracy", (rewards[0] > rewards[1]).float())
            self._of_rankings(columns, both)

    def merged(self, others: Sequence[Tally]) -> Tally:
        """The sums of this and of other processes' passes."""
        total = replace(self, sums=dict(self.sums))
        for other in others:
            total.loss, total.sft = total.loss + other.loss, total.sft + other.sft
            for name, (value, weight) in other.sums.items():
                total._add(name, value, weight)
        return total

    def _of_rankings(
        self, columns: Mapping[str, Any], both: tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]
    ) -> None:
        """Shares of pairs that log-probabilities rank as the data do (Chen et al. 2024, 2405.19534)."""
        (chosen_logp, chosen_length), (rejected_logp, rejected_length) = both
        self._sum("ranking", (chosen_logp > rejected_logp).float())
        per_token = chosen_logp / chosen_length.clamp(min=1) > rejected_logp / rejected_length.clamp(min=1)
        self._sum("ranking_per_token", per_token.float())
        if "chosen_logp_ref" not in columns:
            return
        lead = columns["chosen_logp_ref"] - columns["rejected_logp_ref"]
        self._sum("ranking_reference", (lead > 0).float())
        share = columns.get(SHARE, torch.full_like(lead, torch.nan))
        known = share.isfinite()
        if known.any():
            self._sum("ranking_idealised", idealised(lead[known], share[known], self.beta).float())

    def _of_labels(self, columns: Mapping[str, Any]) -> None:
        if "kl" in columns:
            self._sum("kl", columns["kl"].expand(1))
        if "logp_ref" in columns:
            point = columns.get("kl", columns.get("log_ratio_mean", 0.0))
            above = columns["logp"] - columns["logp_ref"] > point
            self._sum("accuracy", (above == columns["desirable"]).float())

    def _sum(self, name: str, values: Tensor) -> None:
        self._add(name, float(values.sum()), float(len(values)))

    def _add(self, name: str, value: float, weight: float) -> None:
        total, count = self.sums.get(name, (0.0, 0.0))
        self.sums[name] = (total + value, count + weight)


def of(tally: Tally, split: str) -> dict[str, float]:
    """The metrics of a step, or of the held-out items: means, `NAME/heldout` for the latter."""
    means = {name: total / weight for name, (total, weight) in tally.sums.items() if weight}
    if split == "heldout":
        kept = {name: means[name] for name in ("accuracy", *RANKINGS, "rewards/margin") if name in means}
        return {f"loss/{split}": tally.loss, **{f"{name.split('/')[-1]}/{split}": v for name, v in kept.items()}}
    named = {f"{name}/{split}" if "/" not in name and name != "kl" else name: value for name, value in means.items()}
    if "kl" in named:
        named["drift/kl"] = named.pop("kl")
    return {"loss/train": tally.loss, "loss/sft": tally.sft, **named}


def card(about: Mapping[str, Any], heldout: Mapping[str, float]) -> str:
    """What the stage trained and what the model that it hands on does to held-out items, as markdown."""
    lines = ["# Preference optimisation", "", *(f"- {name}: {value}" for name, value in about.items())]
    if heldout:
        lines += [
            "",
            "| held-out items | |",
            "|---|---|",
            *(f"| {k.split('/')[0]} | {v:.4f} |" for k, v in heldout.items()),
        ]
    return "\n".join(lines) + "\n"
