"""A squared distance to a fixed margin, which preferences that are certain cannot drive to infinity."""

from typing import Annotated

from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerPair
from pipelines.preference import ops


@method(
    paper="2310.12036",
    title="A General Theoretical Paradigm to Understand Learning from Human Preferences (IPO), eq. 17",
    checked="third-party code (trl), 1 case",
)
def ipo(
    chosen_logp: PerPair, rejected_logp: PerPair, chosen_logp_ref: PerPair, rejected_logp_ref: PerPair,
    chosen_length: PerPair, rejected_length: PerPair,
    *, beta: Annotated[float, Field(gt=0)] = 0.1, length_normalised: bool = True,
) -> PerPair:  # fmt: skip
    """(d - 1 / (2 beta))^2, with d the difference of the two log-ratios; beta is the paper's tau.

    The paper sums log-ratios over tokens. Its authors averaged them in their experiments, so that one target fits answers of any
    length; TRL does too, and so does ours by default.

    >>> import torch
    >>> p = lambda x: torch.tensor([x])
    >>> round(ipo(p(-10.0), p(-12.0), p(-11.0), p(-11.0), p(5.0), p(4.0)).item(), 4)
    20.7025
    """
    chosen, rejected = chosen_logp - chosen_logp_ref, rejected_logp - rejected_logp_ref
    if length_normalised:
        chosen, rejected = ops.per_token(chosen, chosen_length), ops.per_token(rejected, rejected_length)
    return (chosen - rejected - 1 / (2 * beta)) ** 2
