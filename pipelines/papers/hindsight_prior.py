"""Preferences, and a soft prior on how a part's reward is spread over its turns.

No preset uses it.
"""

from typing import Annotated

import torch.nn.functional as F
from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerPair


@method(
    paper="2210.09151",
    title="Symbol Guided Hindsight Priors for Reward Learning from Human Preferences (PRIOR)",
    checked="reconstructed (from the abstract, the loss as third-party code of its successor, 2404.08828, has it)",
)
def hindsight_prior(
    chosen_reward: PerPair,
    rejected_reward: PerPair,
    chosen_prior: PerPair,
    rejected_prior: PerPair,
    *,
    weight: Annotated[float, Field(ge=0, le=1e6)] = 1.0,
) -> PerPair:
    """-log sigmoid(r_chosen - r_rejected) + weight * (prior_chosen + prior_rejected) / 2.

    A side's prior is the mean over its turns of (r_t - a_t R)^2, R the sum of its rewards and a_t the turn's importance: the reward of a
    segment goes to its important turns, as far as the preferences allow. For pairs of segments of episodes; an answer of one turn has no
    prior. RECONSTRUCTED: the paper computes a_t over abstract, symbolic states by a world model; here it is in the records
    (`chosen_importance`): curation marks the turns that changed the environment's state key (`importance: changes`), else all turns count
    equally.

    >>> import torch
    >>> hindsight_prior(*torch.tensor([[1.2], [0.4], [0.5], [0.1]]), weight=0.5)
    tensor([0.5211])
    """
    return -F.logsigmoid(chosen_reward - rejected_reward) + weight * (chosen_prior + rejected_prior) / 2
