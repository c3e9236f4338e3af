"""How right the steps are, and how many of them there are.

Presets: pspo_wrs.
"""

from typing import Annotated

import torch
from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow, PerToken, PerTurn
from pipelines.rlvr.common.part_rules import several_steps
from pipelines.rlvr.ops_turns import turns_taken


@method(
    paper="2411.11681",
    title="PSPO*: An Effective Process-supervised Policy Optimization for Reasoning Alignment (PSPO-WRS)",
    checked="official code (read; there the Weibull factor is commented out beside an exponential one that its constants do not bound)",
    couples="row",
    check=several_steps,
)
def pspo_wrs(
    step_potential: PerTurn,
    turn: PerToken,
    mask: PerToken,
    *,
    shape: Annotated[float, Field(gt=1, le=20)] = 1.5,
    scale: Annotated[float, Field(gt=0, le=1000)] = 8.0,
    factor: Annotated[float, Field(gt=0, le=1e6)] = 10.735,
) -> PerRow:
    """The reward becomes (prod p_k)^(1/n) h(n), with p_k the scores of the row's n steps:

        h(n) = factor shape/scale (n/scale)^(shape - 1) exp(-(n/scale)^shape)

    a Weibull density over the number of steps, at the defaults about 1 at its peak near n = 3.85. A row of one step gets 0, and so does one
    with a step of score 0. Scores come from `reward: process_model` or `reward: exprl`. The reward depends on the number of steps:
    `shortest` of `process_model` keeps empty lines from inflating it.

    >>> import torch
    >>> p = torch.tensor([[0.9, 0.8, 0.7, 0.95], [1.0, torch.nan, torch.nan, torch.nan]])
    >>> k = torch.tensor([[0, 1, 2, 3], [0, 0, 0, 0]])
    >>> [round(r, 6) for r in pspo_wrs(p, k, k >= 0).tolist()]
    [0.831344, 0.0]
    """
    taken = turns_taken(turn, mask, step_potential.shape[1]) & step_potential.isfinite()
    n = taken.sum(1).double()
    logs = torch.where(taken, step_potential.double().clamp(min=0).log(), 0.0)
    mean = (logs.sum(1) / n).exp()
    share = n / scale
    steps = factor * shape / scale * share ** (shape - 1) * (-(share**shape)).exp()
    return torch.where(n > 1, mean * steps, 0.0).float()
