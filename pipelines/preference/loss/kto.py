"""Labelled answers, without pairs: gains and losses beside a reference point."""

from typing import Annotated

from pydantic import Field
from torch import where

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow


@method(
    paper="2402.01306",
    title="KTO: Model Alignment as Prospect Theoretic Optimization, eq. 8",
    checked="third-party code (trl), 1 case",
    batch_coupled=True,
)
def kto(
    logp: PerRow, logp_ref: PerRow, desirable: PerRow, kl: PerRow,
    *, beta: Annotated[float, Field(gt=0)] = 0.1, desirable_weight: Annotated[float, Field(ge=0)] = 1.0,
    undesirable_weight: Annotated[float, Field(ge=0)] = 1.0,
) -> PerRow:  # fmt: skip
    """w (1 - sigmoid(beta (r - z))) for a desirable answer, w (1 - sigmoid(beta (z - r))) for an undesirable one; r is its log-ratio.

    z is the column `kl`, the step's estimate of KL(policy || reference). The paper advises weights for which (desirable_weight * desirable
    answers) / (undesirable_weight * the others) is between 1 and 4/3.

    >>> import torch
    >>> r = kto(torch.tensor([-10.0, -12.0]), torch.tensor([-11.0, -11.0]), torch.tensor([True, False]), torch.tensor(0.5))
    >>> [round(v, 6) for v in r.tolist()]
    [0.487503, 0.46257]
    """
    gain = beta * (logp - logp_ref - kl)
    return where(desirable, desirable_weight * (1 - gain.sigmoid()), undesirable_weight * (1 - (-gain).sigmoid()))
