"""Mean log-probabilities in place of log-ratios, and a target margin; no reference."""

from typing import Annotated

from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerPair
from pipelines.preference import ops


@method(
    paper="2405.14734",
    title="SimPO: Simple Preference Optimization with a Reference-Free Reward, eq. 6",
    checked="third-party code (trl), 2 cases",
)
def simpo(
    chosen_logp: PerPair, rejected_logp: PerPair, chosen_length: PerPair, rejected_length: PerPair,
    *, beta: Annotated[float, Field(gt=0)] = 2.0, gamma: Annotated[float, Field(ge=0)] = 1.0,
    label_smoothing: Annotated[float, Field(ge=0, lt=0.5)] = 0.0,
) -> PerPair:  # fmt: skip
    """-log sigmoid(beta (a_w - a_l) - gamma), with a the mean log-probability of an answer's tokens.

    The released code gives gamma as a share of beta, 0.25 by default, and the paper suggests about half of beta: 1 here.

    >>> import torch
    >>> p = lambda x: torch.tensor([x])
    >>> round(simpo(p(-8.0), p(-11.0), p(10.0), p(10.0), gamma=0.5).item(), 6), round(simpo(p(-8.0), p(-11.0), p(10.0), p(10.0)).item(), 6)
    (0.644397, 0.913015)
    """
    difference = ops.per_token(chosen_logp, chosen_length) - ops.per_token(rejected_logp, rejected_length)
    return ops.classification(beta * difference - gamma, label_smoothing)
