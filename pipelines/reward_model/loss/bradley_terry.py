"""The chosen answer wins with probability sigmoid(difference of the rewards)."""

from typing import Annotated

import torch.nn.functional as F
from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerPair


@method(
    paper="2307.09288",
    title="Llama 2 (the ranking loss with a margin, section 3.2.2); centering from Eisenstein et al. 2023 (2312.09244)",
    checked="official code (TRL's RewardTrainer, loss and gradient)",
)
def bradley_terry(
    chosen_reward: PerPair,
    rejected_reward: PerPair,
    margin: PerPair,
    *,
    margin_scale: Annotated[float, Field(ge=0, le=1e6)] = 0.0,
    centering: Annotated[float, Field(ge=0, le=1e6)] = 0.0,
) -> PerPair:
    """-log sigmoid(r_chosen - r_rejected - margin_scale * margin) + centering * (r_chosen + r_rejected)^2.

    `margin_scale: 1` with pairs that have a margin is TRL's loss with a margin column; `centering` is its `center_rewards_coefficient`,
    which keeps the rewards around 0 (the first term fixes their differences only).

    >>> import torch
    >>> c, r, m = torch.tensor([1.2]), torch.tensor([0.4]), torch.tensor([0.5])
    >>> bradley_terry(c, r, m), bradley_terry(c, r, m, margin_scale=1.0), bradley_terry(c, r, m, centering=0.01)
    (tensor([0.3711]), tensor([0.5544]), tensor([0.3967]))
    """
    loss = -F.logsigmoid(chosen_reward - rejected_reward - margin_scale * margin)
    return loss + centering * (chosen_reward + rejected_reward).square() if centering else loss
