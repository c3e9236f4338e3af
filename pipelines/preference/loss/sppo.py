"""Self-play: each log-ratio is fitted to the value of its answer in a game of preferences."""

from typing import Annotated

from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerPair


@method(
    paper="2405.00675",
    title="Self-Play Preference Optimization (SPPO), eq. 4.7, with the winner's probability taken as 1",
    checked="third-party code (trl), 1 case",
)
def sppo(
    chosen_logp: PerPair, rejected_logp: PerPair, chosen_logp_ref: PerPair, rejected_logp_ref: PerPair,
    *, beta: Annotated[float, Field(gt=0)] = 1e-3,
) -> PerPair:  # fmt: skip
    """(r_w - 1 / (2 beta))^2 + (r_l + 1 / (2 beta))^2, with r an answer's log-ratio; 1 / beta is the paper's eta.

    The paper's rounds draw new answers from the last round's policy, which is the reference of the next: chain stages as
    recipes/iterative_dpo.yaml does. Its code takes 1e-3 for beta.

    >>> import torch
    >>> p = lambda x: torch.tensor([x])
    >>> sppo(p(-10.0), p(-12.0), p(-11.0), p(-11.0), beta=0.1).item()
    32.0
    """
    target = 1 / (2 * beta)
    return (chosen_logp - chosen_logp_ref - target) ** 2 + (rejected_logp - rejected_logp_ref + target) ** 2
