"""Anchored preference optimisation: the direction of each answer is chosen, not only their difference."""

from typing import Annotated, Literal

from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerPair


@method(
    paper="2408.06266",
    title="Anchored Preference Optimization and Contrastive Revisions, eq. 7 and 8",
    checked="third-party code (trl), 2 cases",
)
def apo(
    chosen_logp: PerPair, rejected_logp: PerPair, chosen_logp_ref: PerPair, rejected_logp_ref: PerPair,
    *, beta: Annotated[float, Field(gt=0)] = 0.1, anchor: Literal["zero", "down"] = "zero",
) -> PerPair:  # fmt: skip
    """zero: 1 - s(r_w) + s(r_l), the chosen answer up, the rejected one down. down: s(r_w) + 1 - s(r_w - r_l), both down.

    s(r) = sigmoid(beta r) of an answer's log-ratio. `zero` is for chosen answers that are better than the model's own, `down` for chosen
    answers that are worse.

    >>> import torch
    >>> p = lambda x: torch.tensor([x])
    >>> [round(apo(p(-10.0), p(-12.0), p(-11.0), p(-11.0), anchor=a).item(), 6) for a in ("zero", "down")]
    [0.950042, 0.975145]
    """
    chosen, rejected = chosen_logp - chosen_logp_ref, rejected_logp - rejected_logp_ref
    if anchor == "zero":
        return (-beta * chosen).sigmoid() + (beta * rejected).sigmoid()
    return (beta * chosen).sigmoid() + (-beta * (chosen - rejected)).sigmoid()
