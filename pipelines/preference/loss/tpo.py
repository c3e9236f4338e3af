"""A preference without reference, and the likelihood of a solution that is better than both answers."""

from typing import Annotated

from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerPair
from pipelines.preference import ops


@method(
    paper="2405.16681",
    title="Triple Preference Optimization: Achieving Better Alignment using a Single Step Optimization (TPO, TPO-L)",
    checked="third-party code (trl), 2 cases",
    reduces_to="cpo for the chosen answer as the solution; simpo for length_normalised and alpha 0",
)
def tpo(
    chosen_logp: PerPair, rejected_logp: PerPair, chosen_length: PerPair, rejected_length: PerPair,
    gold_logp: PerPair, gold_length_mean: PerPair,
    *, beta: Annotated[float, Field(gt=0)] = 0.01, alpha: Annotated[float, Field(ge=0)] = 1.0,
    gamma: Annotated[float, Field(ge=0)] = 0.0, length_normalised: bool = False,
    label_smoothing: Annotated[float, Field(ge=0, lt=0.5)] = 0.0,
) -> PerPair:  # fmt: skip
    """-log sigmoid(beta (log pi(w) - log pi(l)) - gamma) + alpha * NLL of the solution, a mean over the step's tokens of solutions.

    The solution is the record's, or its answer: the third text of a triple, whose likelihood replaces the SFT stage in front of DPO.
    `length_normalised` compares mean log-probabilities of tokens: with `gamma` (TRL: 0.5) that is TPO-L. TRL's hinge and IPO forms are left
    out. Take it where records have a reference solution and two answers of models of which one is better; where the chosen answer is the
    best there is, `cpo` says the same.

    >>> import torch
    >>> p = lambda x: torch.tensor([x])
    >>> round(tpo(p(-10.0), p(-12.0), p(5.0), p(5.0), p(-8.0), torch.tensor(4.0), beta=0.1).item(), 6)
    2.598139
    """
    if length_normalised:
        chosen_logp, rejected_logp = (
            ops.per_token(chosen_logp, chosen_length),
            ops.per_token(rejected_logp, rejected_length),
        )
    preferred = ops.classification(beta * (chosen_logp - rejected_logp) - gamma, label_smoothing)
    return preferred - alpha * gold_logp / gold_length_mean
