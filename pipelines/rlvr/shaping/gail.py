"""Rows are paid by how much a discriminator takes them for demonstrations."""

from typing import Annotated, Literal

import torch
from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow

FLOOR = 1e-8
"""Added to a probability before its logarithm, as in the released code: the most that is paid is 18.4."""


@method(
    paper="2006.16785",
    title="Lipschitzness Is All You Need To Tame Off-policy Generative Adversarial Imitation Learning (the reward)",
    checked="official code (read)",
    provenance=("demonstrations",),
)
def gail(
    reward: PerRow,
    demonstration_logit: PerRow,
    *,
    form: Literal["minimax", "log_odds"] = "minimax",
    weight: Annotated[float, Field(ge=0)] = 1.0,
    verifier_weight: Annotated[float, Field(ge=0)] = 0.0,
) -> PerRow:
    """weight r + verifier_weight R, with D the discriminator's log-odds that the row is a demonstration:

        minimax:   r = -log(1 - sigmoid(D))                  from 0 up: what looks like the policy's own is paid nothing
        log_odds:  r = -log(1 - sigmoid(D)) + log sigmoid(D)  about D itself, of both signs (AIRL)

    Without a `verifier_weight` the verifier does not affect the reward: its `correct` only measures the imitation.

    >>> import torch
    >>> D = torch.tensor([0.0, 2.0, -2.0, 90.0])
    >>> gail(D * 0, D).tolist(), gail(D * 0 + 1, D, weight=0.5, form="log_odds", verifier_weight=1.0).tolist()
    ([0.693147, 2.126928, 0.126928, 18.420681], [1.0, 2.0, 0.0, 10.21034])
    """
    logit = demonstration_logit.double()
    paid = -((-logit).sigmoid() + FLOOR).log()
    if form == "log_odds":
        paid = paid + torch.nn.functional.logsigmoid(logit)
    return (weight * paid + verifier_weight * reward).float()
