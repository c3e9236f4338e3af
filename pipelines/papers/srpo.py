"""Failures are paid for how near they come to successes, in the policy's own hidden states.

Presets: srpo.
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

CLOSE, SMALLEST_RANGE = 0.5, 1e-6
"""Standardised successes up to the first apart are of one cluster; a range of distances below the second is none."""


@method(
    paper="2511.15605",
    title="SRPO: Self-Referential Policy Optimization for Vision-Language-Action Models, on language models",
    checked="paper (formulas; its code was not read and embeds with a world model, here the mean of last hidden states)",
    couples="group",
    provenance=("policy",),
)
class srpo(Method):
    """A row that is not correct gets scale * sigmoid(steepness (offset - d)), d its distance to the nearest cluster of successes.

    Successes of the group are standardised and clustered (DBSCAN with at least two members: chains of successes at most 0.5 apart);
    without a cluster their mean is the only centre. Distances of the group's failures are scaled to 0..1; where they are all the
    same, d is 1/2. A group without a success pays its failures 0; a success keeps its reward. No failure gets as much as `scale`.
    """

    def __init__(
        self,
        *,
        scale: Annotated[float, Field(gt=0)] = 0.6,
        steepness: Annotated[float, Field(gt=0)] = 10.0,
        offset: Annotated[float, Field(ge=0, le=1)] = 0.5,
    ) -> None:
        self.scale, self.steepness, self.offset = scale, steepness, offset

    def column_options(self) -> dict[str, Any]:
        """`hidden_stats` holds the mean of each row's last hidden states."""
        return {"hidden_stats": HiddenStatistics("last", mean_state)}

    def __call__(
        self, reward: PerRow, correct: PerRow, group: PerRow, scored: PerRow, hidden_stats: RowStatistics
    ) -> PerRow:
        """The shaped reward [B].

        >>> H = torch.tensor([[0.0], [0.5], [1.0], [2.5]]); c = torch.tensor([1.0, 0, 0, 0]); one = torch.ones(4).bool()
        >>> [round(v, 6) for v in srpo()(c, c, torch.zeros(4).long(), one, H).tolist()]
        [1.0, 0.595984, 0.554485, 0.004016]
        """
        shaped = reward.clone()
        for number in group[scored].unique().tolist():
            rows = (group == number) & scored
            failed, passed = rows & (correct <= 0), rows & (correct > 0)
            if not failed.any():
                continue
            if not passed.any():
                shaped[failed] = 0.0
                continue
            distance = torch.cdist(hidden_stats[failed].double(), centres(hidden_stats[passed].double())).amin(1)
            spread = distance.max() - distance.min()
            scaled = (distance - distance.min()) / spread if spread > SMALLEST_RANGE else torch.full_like(distance, 0.5)
            shaped[failed] = (self.scale * torch.sigmoid(self.steepness * (self.offset - scaled))).float()
        return shaped


def centres(successes: Tensor) -> Tensor:
    """Means of the clusters of successes, float64 [C, K]; the mean of all where none are near each other.

    >>> x = torch.tensor([[0.0], [0.1], [9.0], [9.1], [4.0]], dtype=torch.float64)
    >>> centres(x).squeeze(1).tolist()
    [0.05, 9.05]
    """
    deviation = successes.std(0, correction=0)
    standard = (successes - successes.mean(0)) / torch.where(deviation > 0, deviation, 1.0)
    reach = (torch.cdist(standard, standard) <= CLOSE).double()
    for _ in range(len(successes).bit_length()):
        reach = (reach @ reach > 0).double()
    first = reach.argmax(1)
    clusters = [first == position for position in first.unique().tolist()]
    means = [successes[members].mean(0) for members in clusters if members.sum() > 1]
    return torch.stack(means) if means else successes.mean(0, keepdim=True)
