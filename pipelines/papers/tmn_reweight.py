"""Centre per prompt, scale per task, and weigh by difficulty.

Presets: tmn_reweight.
"""

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow
from pipelines.rlvr.ops import group_mean, group_size, group_std, group_sum


@method(
    paper="2605.19577",
    title="GoLongRL: Multitask Alignment (TMN-Reweight)",
    checked="official code, 6 cases",
    crosses_groups="the scale is the task's, over all its prompts",
    reduces_to="gamma 0 is the mean-centred reward over the task's deviation",
)
def tmn_reweight(
    reward: PerRow,
    group: PerRow,
    task: PerRow,
    scored: PerRow,
    *,
    gamma: Annotated[float, Field(ge=0)] = 1.0,
    smoothing: Annotated[float, Field(ge=0, le=1)] = 0.8,
    eps: Annotated[float, Field(gt=0)] = 1e-6,
) -> PerRow:
    """A_i = (r_i - mean_g) / (s_task + eps) * w_i, with s_task the root of the mean variance of the task's prompts.

        threshold_g = a mean_g + (1 - a) mean over the task's prompts;   p_g = share of the group above it
        w = exp(gamma (0.5 - p_g)) for r > mean_g, else exp(gamma (p_g - 0.5))

    A group of one has variance 0 here and gets 0; the official code gives it mean 0 and variance 1, which shifts its task.

    >>> import torch
    >>> r = torch.tensor([1.0, 0, 0, 0, 1, 1, 1, 0, 0.2, 0.4, 0.6, 0.8]); g = torch.arange(12) // 4
    >>> A = tmn_reweight(r, g, g // 2, torch.ones(12).bool(), smoothing=0.5)
    >>> [round(v, 4) for v in A[[0, 1, 4, 7, 8, 9]].tolist()]
    [1.926, -0.3894, 0.3894, -1.926, -1.1619, -0.3873]
    """
    mean = group_mean(reward, group, scored)
    variance = group_std(reward, group, scored) ** 2
    prompt_weight = scored / group_size(group, scored).clamp(min=1)  # so that a prompt counts once in its task

    def over_prompts(x: Tensor) -> Tensor:
        return group_sum(x * prompt_weight, task) / group_sum(prompt_weight, task).clamp(min=1e-12)

    task_scale, task_mean = over_prompts(variance).sqrt(), over_prompts(mean)
    threshold = smoothing * mean + (1 - smoothing) * task_mean
    share = group_mean((reward > threshold + 1e-9).double(), group, scored)
    exponent = torch.where(reward > mean + 1e-9, 0.5 - share, share - 0.5)
    return ((reward - mean) / (task_scale + eps) * torch.exp(gamma * exponent) * scored).float()
