"""Policy gradient with a quadratic penalty of the log-ratio in place of a clip."""

from typing import Annotated

from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerToken


@method(
    paper="2405.19107",
    title="Offline Regularised Reinforcement Learning for Large Language Models Alignment (DRO), as a loss per token",
    checked="third-party code (verl), 5 cases",
    ratio_level="token",
    reduces_to="on on-policy rollouts it is reinforce",
)
def dro(
    logp: PerToken,
    logp_old: PerToken,
    advantage: PerToken,
    mask: PerToken,
    *,
    beta: Annotated[float, Field(gt=0)] = 0.1,
) -> PerToken:
    """Minus log-probability times advantage, and half of `beta` times the squared log-ratio.

        l = -A logp + beta / 2 (logp - logp_old)^2

    No importance weight, so a rare token of an old rollout counts like any other, and the square pulls it back: its gradient is 0 where the
    log-ratio is A / beta. For rollouts of older policies whose ratios are useless. The form is verl's, with the sampler as the paper's
    reference and a group's advantage for its fitted value.

    >>> import torch
    >>> m = torch.ones(1, 2).bool()
    >>> dro(torch.tensor([[-1.0, -2.0]]), torch.tensor([[-1.5, -2.0]]), torch.tensor([[1.0, -0.5]]), m, beta=0.4).tolist()
    [[1.05, -1.0]]
    """
    return (-advantage * logp + 0.5 * beta * (logp - logp_old).square()).masked_fill(~mask, 0.0)
