"""Whole demonstrations are imitated with a constant weight."""

from typing import Annotated

import torch
from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerToken
from pipelines.rlvr.ops import demonstrations


@method(
    paper="1906.05838",
    title="Goal-conditioned Imitation Learning (behavioural cloning beside the policy gradient)",
    checked="reconstructed (a constant weight; the paper anneals it)",
    reduces_to="weight 0 leaves the rows unlearned",
)
def hindsight(
    advantage: PerToken,
    teacher_forced: PerToken,
    mask: PerToken,
    *,
    weight: Annotated[float, Field(ge=0, le=100)] = 0.1,
) -> PerToken:
    """Rows whose every trained token is teacher-forced get the advantage `weight`: with a ratio of 1, the gradient of weight * log pi.

    >>> import torch
    >>> forced = torch.tensor([[True, True], [True, False]])
    >>> hindsight(torch.tensor([[0.0, 0.0], [0.5, 0.5]]), forced, torch.ones(2, 2).bool(), weight=0.2).tolist()
    [[0.2, 0.2], [0.5, 0.5]]
    """
    return torch.where(demonstrations(mask, teacher_forced)[:, None], weight * mask, advantage)
