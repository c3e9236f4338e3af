"""A mix of three losses: preference, quality of each answer, and generation of the chosen one."""

from typing import Annotated

from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerPair
from pipelines.preference import ops


@method(
    paper="2411.10442",
    title="Mixed Preference Optimization (InternVL), as in Skywork R1V2 (2504.16656)",
    checked="third-party code (trl), 1 case",
    reduces_to="dpo for quality 0 and generation 0",
)
def mpo(
    chosen_logp: PerPair, rejected_logp: PerPair, chosen_logp_ref: PerPair, rejected_logp_ref: PerPair,
    chosen_length_mean: PerPair,
    *, beta: Annotated[float, Field(gt=0)] = 0.1, preference: Annotated[float, Field(ge=0)] = 0.8,
    quality: Annotated[float, Field(ge=0)] = 0.2, generation: Annotated[float, Field(ge=0)] = 1.0,
) -> PerPair:  # fmt: skip
    """preference * DPO + quality * (-log s(r_w) - log s(-r_l)) + generation * NLL, with s(r) = sigmoid(beta r) of a log-ratio.

    The quality term is BCO's, whose running mean of rewards is 0 here as in TRL. The NLL is a mean over the step's chosen tokens.

    >>> import torch
    >>> p = lambda x: torch.tensor([x])
    >>> round(mpo(p(-12.0), p(-8.0), p(-14.0), p(-7.0), torch.tensor(10.0)).item(), 6)
    1.891991
    """
    chosen, rejected = beta * (chosen_logp - chosen_logp_ref), beta * (rejected_logp - rejected_logp_ref)
    which = ops.classification(chosen - rejected)
    how_good = ops.classification(chosen) + ops.classification(-rejected)
    return preference * which + quality * how_good - generation * chosen_logp / chosen_length_mean
