"""The reward reads a critique that the model wrote, and the language head keeps learning to write them."""

from typing import Annotated

import torch.nn.functional as F
from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerPair


@method(
    paper="2408.11791",
    title="Critique-out-Loud Reward Models",
    checked="official code (by the sheet's example)",
)
def cloud(
    chosen_reward: PerPair,
    rejected_reward: PerPair,
    chosen_critique_logp: PerPair,
    rejected_critique_logp: PerPair,
    chosen_critique_length: PerPair,
    rejected_critique_length: PerPair,
    *,
    weight: Annotated[float, Field(ge=0, le=1e6)] = 1.25,
) -> PerPair:
    """-log sigmoid(r_chosen - r_rejected) + weight * mean cross-entropy of the critiques' tokens.

    Each reward is read after the critique of its own answer (`reward_model.critique`). The paper first trains the language model on an
    oracle's critiques (a stage of kind sft), then with this loss on critiques that the model wrote itself (`critique: {source: own}`), with
    the weight 1.25 for 8B and 0.75 for 70B parameters. The mean is over the tokens of a pair's two critiques.

    >>> import torch
    >>> r, length = (torch.tensor([0.9]), torch.tensor([0.1])), (torch.tensor([6.0]), torch.tensor([4.0]))
    >>> logp = torch.tensor([-9.0]), torch.tensor([-5.0])
    >>> cloud(*r, *logp, *length), cloud(*r, *logp, *length, weight=0.75), cloud(*r, *logp, *length, weight=0.0)
    (tensor([2.1211]), tensor([1.4211]), tensor([0.3711]))
    """
    tokens = (chosen_critique_length + rejected_critique_length).clamp(min=1)
    cross_entropy = -(chosen_critique_logp + rejected_critique_logp) / tokens
    return -F.logsigmoid(chosen_reward - rejected_reward) + weight * cross_entropy
