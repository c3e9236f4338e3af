"""Rows that the model sees as unlike the others of their group are paid for it.

Presets: elliptical.
"""

from __future__ import annotations

from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow, RowStatistics
from pipelines.contract.hidden_statistics import HiddenStatistics
from pipelines.contract.method import Method
from pipelines.rlvr.ops import mean_state


@method(
    paper="2306.03236",
    title="A Study of Global and Episodic Bonuses for Exploration in Contextual MDPs (E3B, the elliptical episodic bonus)",
    checked="official code (the bonus; what is an episode and a feature of text is ours)",
    provenance=("policy",),
    intrinsic=True,
    couples="group",
)
class elliptical(Method):
    r"""Adds weight * b to the reward, with x the mean of the policy's last hidden states before the row's tokens, scaled to length 1:

        b_i = x_i^T C_i^-1 x_i,   C_i = ridge I + sum of x_j x_j^T over the other scored rows j of the group

    b is 1 / ridge where x is orthogonal to all other rows, and ridge / (ridge + n - 1) of that where n rows are equal. The paper's episode
    is a trajectory and C holds the earlier states; here it is the group, whose rows are sampled in parallel, so each is compared with all
    others and their order changes nothing. With `correct_only` (ours) rows that the verifier does not call correct get no bonus: incorrect
    answers differ easily. The paper multiplies it by a global bonus; `novelty` has the count-based ones.
    """

    def __init__(
        self,
        *,
        weight: Annotated[float, Field(gt=0)] = 0.01,
        ridge: Annotated[float, Field(gt=0)] = 0.1,
        correct_only: bool = True,
    ) -> None:
        self.weight, self.ridge, self.correct_only = weight, ridge, correct_only

    def column_options(self) -> dict[str, Any]:
        """Mean hidden states."""
        return {"hidden_stats": HiddenStatistics("last", mean_state)}

    def __call__(
        self, reward: PerRow, hidden_stats: RowStatistics, group: PerRow, scored: PerRow, correct: PerRow
    ) -> PerRow:
        """The rewards [B] with the bonus.

        >>> x, one = torch.tensor([[2.0, 0.0], [3.0, 0.0], [0.0, 1.0]]), torch.ones(3)
        >>> elliptical(weight=1.0)(one * 0, x, one.long(), one > 0, one).tolist()
        [0.909091, 0.909091, 10.0]
        """
        lengths = torch.zeros(len(reward), dtype=torch.float64)
        for each in group[scored].unique().tolist():
            rows = ((group == each) & scored).nonzero().squeeze(1)
            lengths[rows] = self.lengths(hidden_stats[rows].double())
        paid = lengths * correct if self.correct_only else lengths
        return (reward + self.weight * paid).float()

    def lengths(self, features: Tensor) -> Tensor:
        """b of each row [n, K] of a group, float64 [n].

        With K = X X^T and all n rows in C, x_i^T C^-1 x_i = 1 - ridge [(ridge I + K)^-1]_ii (Woodbury); taking x_i itself out of C
        (Sherman-Morrison) gives 1 / (ridge [(ridge I + K)^-1]_ii) - 1.
        """
        unit = torch.nn.functional.normalize(features, dim=1)
        inverse = torch.linalg.inv(unit @ unit.T + self.ridge * torch.eye(len(unit), dtype=unit.dtype))
        return 1 / (self.ridge * inverse.diagonal()) - 1
