"""Preferences as a classification of log-ratios to a reference."""

from typing import Annotated

from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerPair
from pipelines.preference import ops


@method(
    paper="2305.18290",
    title="Direct Preference Optimization, eq. 7; cDPO (label smoothing); ODPO (2402.10571, margins)",
    checked="third-party code (trl), 3 cases",
)
def dpo(
    chosen_logp: PerPair, rejected_logp: PerPair, chosen_logp_ref: PerPair, rejected_logp_ref: PerPair,
    chosen_length: PerPair, rejected_length: PerPair, margin: PerPair,
    *, beta: Annotated[float, Field(gt=0)] = 0.1, label_smoothing: Annotated[float, Field(ge=0, lt=0.5)] = 0.0,
    margin_weight: Annotated[float, Field(ge=0)] = 0.0, length_normalised: bool = False,
) -> PerPair:  # fmt: skip
    """-log sigmoid(beta d - margin_weight * margin), with d the log-ratio of the chosen answer less that of the rejected one.

    `label_smoothing` e is cDPO: labels are taken to be false with probability e, and the loss is the mixture of both. `margin_weight`
    asks for a larger difference where a pair's answers differ more (ODPO with a linear margin). `length_normalised` divides each
    log-ratio by its answer's tokens; beta is then larger by as much, 2 to 10.

    >>> import torch
    >>> p = lambda x: torch.tensor([x])
    >>> round(dpo(p(-10.0), p(-12.0), p(-11.0), p(-11.0), p(5.0), p(5.0), p(0.0)).item(), 6)
    0.598139
    """
    chosen, rejected = chosen_logp - chosen_logp_ref, rejected_logp - rejected_logp_ref
    if length_normalised:
        chosen, rejected = ops.per_token(chosen, chosen_length), ops.per_token(rejected, rejected_length)
    return ops.classification(beta * (chosen - rejected) - margin_weight * margin, label_smoothing)
