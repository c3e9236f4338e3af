"""Compare rows with the half of the group that is longer, shorter, surer or less sure.

Presets: canon.
"""

from typing import Annotated, Literal

from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow, PerToken
from pipelines.rlvr.ops import group_index, group_mean, group_rank, group_size, group_sum, row_mean


@method(
    paper="https://github.com/biuboomc/CANON",
    title="CANON: Conditional Advantage Estimation",
    checked="official code, 12 cases",
    couples="group",
    reduces_to="mu: 0.5 with halves of equal size is Dr. GRPO's advantage",
)
def canon(
    reward: PerRow,
    group: PerRow,
    scored: PerRow,
    mask: PerToken,
    entropy_old: PerToken,
    length: PerRow,
    *,
    metric: Literal["entropy", "length"] = "entropy",
    mu: Annotated[float, Field(ge=0, le=1)] = 1.0,
) -> PerRow:
    """Reward against the other half's mean (weight `mu`) and the own half's mean (weight 1 - mu).

        A = mu (r - mean of the other half) + (1 - mu) (r - mean of the own half)

    The group is sorted by the metric (mean token entropy or length); of an odd number the upper half gets the extra
    row; ties keep their order. This is the paper's form with its preference settings at their neutral values (alpha
    1, beta 0) and without the constant 1 / L_max, which is `loss_aggregation: fixed_length`. A group of one gets 0:
    it has nothing to be compared with (the official code keeps its raw reward).

    >>> import torch
    >>> r = torch.tensor([1.0, 0, 1, 1, 0]); g = torch.zeros(5, dtype=torch.int64)
    >>> H = torch.tensor([[0.5], [0.2], [0.9], [0.1], [0.7]]); yes = torch.ones(5).bool()
    >>> canon(r, g, yes, yes[:, None], H, r).tolist()
    [0.5, -0.666667, 0.5, 0.333333, -0.5]
    """
    sort_key = row_mean(entropy_old, mask) if metric == "entropy" else length
    upper = group_rank(sort_key.argsort(stable=True), group, scored) >= (group_size(group, scored) // 2)
    half = group_index(group)[0] * 2 + upper
    own_mean = group_mean(reward, half, scored)
    group_total, group_count = group_sum(reward * scored, group), group_size(group, scored)
    half_total, half_size = group_sum(reward * scored, half), group_size(half, scored)
    other_mean = (group_total - half_total) / (group_count - half_size).clamp(min=1)
    advantage = mu * (reward - other_mean) + (1 - mu) * (reward - own_mean)
    return (advantage * scored * (group_count > 1)).float()
