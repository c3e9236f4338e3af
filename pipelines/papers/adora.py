"""Groups whose correct answers are not the longest count less.

Presets: adora.
"""

from typing import Annotated

import torch
from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow, PerToken
from pipelines.rlvr.ops import group_max, group_mean, group_size


@method(
    paper="https://github.com/ShadeCloak/ADORA",
    title="ADORA: Training Reasoning Models with Dynamic Advantage Estimation on Reinforcement Learning",
    checked="official code, 5 cases (language-model rule; length cap as a share of the limit)",
    couples="group",
    reduces_to="weight 1 changes nothing",
)
def adora(
    advantage: PerToken,
    correct: PerRow,
    group: PerRow,
    scored: PerRow,
    length: PerRow,
    max_tokens: PerRow,
    *,
    weight: Annotated[float, Field(ge=0)] = 0.1,
    cap: Annotated[float, Field(gt=0, le=1)] = 0.99,
) -> PerToken:
    """The group's advantages times 1 where its longest correct row is longer than its incorrect rows' mean, else times `weight`.

    Incorrect rows longer than `cap` of the limit do not enter the mean. Without such rows any correct row is long enough;
    without correct rows the weight applies.

    >>> import torch
    >>> A, c, g = torch.ones(4, 1), torch.tensor([1.0, 0, 0, 1]), torch.zeros(4).long()
    >>> yes, top = torch.ones(4).bool(), torch.full((4,), 4096.0)
    >>> [adora(A, c, g, yes, torch.tensor(n), top)[0, 0].item() for n in ([300.0, 900, 700, 400], [300.0, 900, 700, 1200])]
    [0.1, 1.0]
    """
    is_correct = (correct > 0) & scored
    is_incorrect = (correct <= 0) & scored & (length < cap * max_tokens)
    longest_correct = group_max(length, group, is_correct)
    has_incorrect = group_size(group, is_incorrect) > 0
    mean_incorrect = group_mean(length, group, is_incorrect).masked_fill(~has_incorrect, -torch.inf)
    factor = torch.where(longest_correct > mean_incorrect, 1.0, weight)
    return advantage * factor[:, None].to(advantage.dtype)
