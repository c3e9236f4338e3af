"""Labels move towards what the model believes, after every pass over the pairs.

No preset uses it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerPair
from pipelines.contract.method import Method


@method(
    paper="2401.16335",
    title="Iterative Data Smoothing: Mitigating Reward Overfitting and Overoptimization in RLHF",
    checked="reconstructed (the sheet's example)",
)
class iterative_smoothing(Method):
    """-(y log sigmoid(d) + (1 - y) log sigmoid(-d)), d = r_chosen - r_rejected; after each epoch y <- (1 - rate) y + rate sigmoid(d).

    A label y is the probability that the chosen answer is better: 1 at the start. d is the updated model's, scored once an epoch; of
    several heads, their mean. Held-out pairs keep the label 1.
    """

    def __init__(self, *, rate: Annotated[float, Field(ge=0, le=1)] = 0.7) -> None:
        self.rate = rate
        self.labels = torch.ones(0)

    def __call__(self, pair: PerPair, chosen_reward: PerPair, rejected_reward: PerPair) -> PerPair:
        """The loss of each pair.

        >>> ids, zero = iterative_smoothing(rate=0.7), torch.zeros(1)
        >>> for d in (0.5, 0.8, 1.0):
        ...     columns = {"pair": torch.tensor([0]), "chosen_reward": torch.tensor([d]), "rejected_reward": zero}
        ...     loss = ids(**columns)
        ...     ids.on_epoch([columns])
        ...     print(round(float(loss), 6), round(float(ids.labels[0]), 6))
        0.474077 0.735722
        0.582523 0.703699
        0.609563 0.722851
        """
        label = torch.ones_like(chosen_reward)
        known = (pair >= 0) & (pair < len(self.labels))
        label[known] = self.labels[pair[known]].to(label.dtype)
        difference = chosen_reward - rejected_reward
        return -label * F.logsigmoid(difference) - (1 - label) * F.logsigmoid(-difference)

    def on_epoch(self, heads: list[Mapping[str, Any]]) -> None:
        """Move every label.

        Args:
            heads: for each head, the columns of all training pairs.
        """
        difference = torch.stack([each["chosen_reward"] - each["rejected_reward"] for each in heads]).mean(0)
        if len(self.labels) < len(difference):
            self.labels = torch.ones(len(difference))
        pair = heads[0]["pair"]
        self.labels[pair] = (1 - self.rate) * self.labels[pair] + self.rate * torch.sigmoid(difference)

    def state_dict(self) -> dict[str, Any]:
        """The labels."""
        return {"labels": self.labels}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up where `state_dict` left off."""
        self.labels = state["labels"]
