"""Labelled answers, told apart by a classifier whose reward is the log-ratio."""

from typing import Annotated

from pydantic import Field
from torch import where

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow
from pipelines.preference import ops


@method(
    paper="2404.04656",
    title="Binary Classifier Optimization for Large Language Model Alignment (BCO), eq. 13",
    checked="third-party code (trl), 1 case",
    batch_coupled=True,
)
def bco(
    logp: PerRow, logp_ref: PerRow, desirable: PerRow, log_ratio_mean: PerRow,
    *, beta: Annotated[float, Field(gt=0)] = 0.1,
) -> PerRow:  # fmt: skip
    """-log sigmoid(beta (r - z)) for a desirable answer, -log sigmoid(beta (z - r)) for an undesirable one; r is its log-ratio.

    z is the column `log_ratio_mean`: the mean log-ratio of all answers trained so far, which needs no answers to other prompts as KTO's
    does. The paper's weights for prompts that differ between the labels (underlying distribution matching) are not computed.

    >>> import torch
    >>> r = bco(torch.tensor([-10.0, -12.0]), torch.tensor([-11.0, -11.0]), torch.tensor([True, False]), torch.tensor(0.5))
    >>> [round(v, 6) for v in r.tolist()]
    [0.66846, 0.620957]
    """
    margin = beta * (logp - logp_ref - log_ratio_mean)
    return ops.classification(where(desirable, margin, -margin))
