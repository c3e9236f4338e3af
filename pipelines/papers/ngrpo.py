"""Group statistics with a virtual perfect answer.

Presets: ngrpo.
"""

from typing import Annotated

from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow
from pipelines.rlvr.ops import group_size, group_sum, homogeneous


@method(
    paper="https://github.com/nangongrui-ngr/NGRPO",
    title="NGRPO: Negative-enhanced Group Relative Policy Optimization",
    checked="official code, 6 cases",
    couples="group",
    zero_variance_groups="learns",
)
def ngrpo(
    reward: PerRow,
    group: PerRow,
    scored: PerRow,
    *,
    best: float = 1.0,
    virtual: Annotated[int, Field(ge=1)] = 1,
    eps: Annotated[float, Field(gt=0)] = 1e-6,
) -> PerRow:
    """GRPO with `virtual` rows of reward `best` in the mean and deviation of every group (ddof 1).

        A_i = (r_i - mean') / (std' + eps) over the real rows

    A group that is all incorrect gets negative advantages; one that is all correct gets 0. A group of one gets 0 (it has nothing to be
    compared with; the released code gives it the raw reward). The paper clips at 0.16 below and 0.24 above.

    >>> import torch
    >>> r, g = torch.tensor([1.0] + [0.0] * 7), torch.zeros(8, dtype=torch.int64)
    >>> ngrpo(r, g, torch.ones(8).bool())[:2].tolist(), ngrpo(r * 0, g, torch.ones(8).bool())[0].item()
    ([1.763830, -0.503951], -0.333332)
    """
    n = group_size(group, scored)
    n_with_virtual = n + virtual
    mean = (group_sum(reward * scored, group) + virtual * best) / n_with_virtual
    squared_deviations = group_sum((reward - mean) ** 2 * scored, group) + virtual * (best - mean) ** 2
    std = (squared_deviations / (n_with_virtual - 1).clamp(min=1)).sqrt()
    perfect = homogeneous(reward, group, scored) & ((reward - best).abs() < 1e-8)
    advantage = (reward - mean) / (std + eps) * scored * (n > 1)
    return advantage.masked_fill(perfect, 0.0).float()
