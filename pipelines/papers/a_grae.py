"""GRPO's advantage, reweighted by the difficulty of the prompt and the progress of the batch.

Presets: a_grae.
"""

from typing import Annotated

from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow
from pipelines.rlvr.ops import group_mean, group_size, homogeneous, standardised


@method(
    paper="https://github.com/Yu7-code/A-GRAE",
    title="Unveiling Implicit Advantage Symmetry (A-GRAE)",
    checked="official code, 6 cases",
    crosses_groups="the batch's mean accuracy sets the balance between hard and easy prompts",
)
def a_grae(
    reward: PerRow,
    group: PerRow,
    scored: PerRow,
    *,
    alpha: Annotated[float, Field(gt=0)] = 1.0,
    eps: Annotated[float, Field(gt=0)] = 1e-6,
) -> PerRow:
    """Early on easy prompts lead and successes are damped; as accuracy grows the focus moves to hard prompts.

        A_hard = A0 / (2 sqrt(m));  A_easy = A0 / (2 (1 - sqrt(m)));  A = (1 - M) A_easy + M A_hard
        positive A are multiplied by min(1, M / alpha)

    A0 is GRPO's advantage, m the group's mean reward, M the mean of m over groups. Homogeneous groups and groups of one get 0 (the official
    code divides the reward of one alone by 2e-6). Rewards are clamped to [0, 1] for m. The released code switches the rule off after the
    first annealing step; here it is always on.

    >>> import torch
    >>> r, g = torch.tensor([1.0, 0, 0, 0, 1, 1, 1, 0]), torch.tensor([0, 0, 0, 0, 1, 1, 1, 1])
    >>> a_grae(r, g, torch.ones(8).bool())[[0, 1, 4, 7]].tolist()
    [0.749997, -0.499998, 0.538670, -3.232023]
    """
    mean = group_mean(reward, group, scored)
    standard = standardised(reward, group, scored, eps=eps).masked_fill(homogeneous(reward, group, scored), 0.0)
    accuracy = mean.clamp(0, 1)
    row_weight = scored / group_size(group, scored).clamp(min=1)
    progress = (accuracy * row_weight).sum() / row_weight.sum().clamp(min=1)
    root_accuracy = accuracy.sqrt()
    hard, easy = 0.5 * standard / (root_accuracy + eps), 0.5 * standard / (1 - root_accuracy + eps)
    mixed = (1 - progress) * easy + progress * hard
    damped = mixed * (progress / alpha).clamp(max=1)
    return mixed.where(mixed <= 0, damped).float()
