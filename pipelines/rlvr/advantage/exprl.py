"""What each step added to a judge's grade of the reasoning so far."""

from typing import Annotated, Literal

import torch
from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow, PerToken, PerTurn
from pipelines.rlvr.ops import group_mean, row_mean
from pipelines.rlvr.ops_turns import carried_values, turns_to_tokens


@method(
    paper="2606.17024",
    title="ExpRL: Exploratory RL for LLM Mid-Training",
    checked="official code (read; a single step is 0 for `delta`, where the released code keeps its grade, and means are over tokens, "
    "where it divides by the padded length too)",
    group_of_one="compares steps with each other",
    zero_variance_groups="learns",
)
def exprl(
    step_potential: PerTurn,
    turn: PerToken,
    group: PerRow,
    scored: PerRow,
    mask: PerToken,
    *,
    baseline: Literal["delta", "end", "group", "batch"] = "delta",
    weight: Annotated[float, Field(gt=0, le=1000)] = 1.0,
) -> PerToken:
    """Every token of step k gets `weight` times, with u_k the value of the reasoning up to the end of step k and K the last one:

        delta:  u_k - u_{k-1}, u_0 = 0, and less u_K in the first step, so that a row's steps add up to 0
        end:    u_k - u_K
        group:  u_k less the group's mean over rows of their means over tokens; batch: less the batch's

    A step without a value keeps the one before it. The values come from `reward: exprl`, or from `rollout: spae`.

    >>> import torch
    >>> u = torch.tensor([[0.25, 0.75, 0.5, 1.0]]); k = torch.arange(4)[None]; one = torch.ones(1).bool()
    >>> exprl(u, k, one.long(), one, k >= 0).tolist(), exprl(u, k, one.long(), one, k >= 0, baseline="end").tolist()
    ([[-0.75, 0.5, -0.25, 0.5]], [[-0.75, -0.25, -0.5, 0.0]])
    """
    values = carried_values(step_potential)
    last = values[:, -1:]
    if baseline == "delta":
        differences = values.diff(dim=1, prepend=torch.zeros_like(last))
        differences[:, :1] -= last
        result = turns_to_tokens(differences, turn)
    elif baseline == "end":
        result = turns_to_tokens(values - last, turn)
    else:
        per_token = turns_to_tokens(values, turn)
        inside = mask & (turn >= 0)
        everywhere = group if baseline == "group" else torch.zeros_like(group)
        mean = group_mean(row_mean(per_token, inside), everywhere, scored & inside.any(1))
        result = (per_token - mean[:, None]) * inside
    return (weight * result * (mask & scored[:, None])).float()
