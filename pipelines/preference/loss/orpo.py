"""Fine-tuning on the chosen answer, with an odds ratio against the rejected one; no reference."""

from typing import Annotated

import torch.nn.functional as F
from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerPair
from pipelines.preference import ops


@method(
    paper="2403.07691",
    title="ORPO: Monolithic Preference Optimization without Reference Model, eq. 6 and 7",
    checked="third-party code (trl), 1 case",
)
def orpo(
    chosen_logp: PerPair, rejected_logp: PerPair, chosen_length: PerPair, rejected_length: PerPair,
    chosen_length_mean: PerPair,
    *, weight: Annotated[float, Field(ge=0)] = 0.1,
) -> PerPair:  # fmt: skip
    """NLL of the chosen answer - weight * log sigmoid(log odds(chosen) / odds(rejected)), odds p / (1 - p) of the mean log-prob.

    The NLL is a mean over the step's chosen tokens. TRL's includes the prompt's tokens; the paper's is that of the answer given the prompt,
    and so is ours.

    >>> import torch
    >>> p = lambda x: torch.tensor([x])
    >>> round(orpo(p(-4.0), p(-6.0), p(5.0), p(4.0), torch.tensor(5.0)).item(), 6)
    0.830158
    """
    chosen, rejected = ops.per_token(chosen_logp, chosen_length), ops.per_token(rejected_logp, rejected_length)
    log_odds = (chosen - rejected) - (ops.log1mexp(chosen) - ops.log1mexp(rejected))
    return -chosen_logp / chosen_length_mean - weight * F.logsigmoid(log_odds)
