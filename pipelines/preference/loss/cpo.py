"""DPO without its reference, and with the likelihood of the chosen answer to hold the policy in its place."""

from typing import Annotated

from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerPair
from pipelines.preference import ops


@method(
    paper="2401.08417",
    title="Contrastive Preference Optimization: Pushing the Boundaries of LLM Performance in Machine Translation, eq. 3 to 5",
    checked="third-party code (trl), 2 cases",
    reduces_to="dpo for generation 0 and a reference that gives both answers one probability",
)
def cpo(
    chosen_logp: PerPair, rejected_logp: PerPair, chosen_length_mean: PerPair,
    *, beta: Annotated[float, Field(gt=0)] = 0.1, generation: Annotated[float, Field(ge=0)] = 1.0,
    label_smoothing: Annotated[float, Field(ge=0, lt=0.5)] = 0.0,
) -> PerPair:  # fmt: skip
    """-log sigmoid(beta (log pi(w) - log pi(l))) + generation * NLL of the chosen answer, a mean over the step's chosen tokens.

    >>> import torch
    >>> p = lambda x: torch.tensor([x])
    >>> round(cpo(p(-10.0), p(-12.0), torch.tensor(5.0)).item(), 6)
    2.598139
    """
    preferred = ops.classification(beta * (chosen_logp - rejected_logp), label_smoothing)
    return preferred - generation * chosen_logp / chosen_length_mean
