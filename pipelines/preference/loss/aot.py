"""Distributions are aligned, not pairs: the better answers' is to dominate the worse ones' at every quantile."""

from typing import Annotated

from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerPair
from pipelines.preference import ops


@method(
    paper="2406.05882",
    title="Distributional Preference Alignment of LLMs via Optimal Transport (AOT), algorithms 1 and 2",
    checked="third-party code (trl), 2 cases",
    reduces_to="dpo for one pair a step",
    batch_coupled=True,
)
def aot(
    chosen_logp: PerPair, rejected_logp: PerPair, chosen_logp_ref: PerPair, rejected_logp_ref: PerPair,
    lead_ref_ranked: PerPair, chosen_ratio_ranked: PerPair, rejected_ratio_ranked: PerPair,
    *, beta: Annotated[float, Field(gt=0)] = 0.1, paired: bool = True,
    label_smoothing: Annotated[float, Field(ge=0, lt=0.5)] = 0.0,
) -> PerPair:  # fmt: skip
    """-log sigmoid(beta (x_k - y_k)) over the ranks k of two samples of the step, each sorted.

    `paired`: x are the policy's leads (log-probability of the chosen answer less that of the rejected one), y the reference's. Otherwise
    x are the log-ratios of chosen answers, y those of rejected ones, and which answers stood in one pair does not count. The step is
    scored once more, without gradient, to know the ranks; use as many pairs a step as fit.

    >>> import torch
    >>> p = lambda x: torch.tensor([x])
    >>> alone = p(-10.0), p(-12.0), p(-11.0), p(-11.0), p(0.0), p(1.0), p(-1.0)
    >>> [round(aot(*alone, paired=paired).item(), 6) for paired in (True, False)]
    [0.598139, 0.598139]
    """
    if paired:
        return ops.classification(beta * (chosen_logp - rejected_logp - lead_ref_ranked), label_smoothing)
    # The term of a rank is reached from both of its answers, each of which takes the other's value as given: their sum has the gradient
    # of the term, and twice its value.
    of_chosen = ops.classification(beta * (chosen_logp - chosen_logp_ref - rejected_ratio_ranked), label_smoothing)
    of_rejected = ops.classification(
        beta * (chosen_ratio_ranked - (rejected_logp - rejected_logp_ref)), label_smoothing
    )
    both = of_chosen + of_rejected
    return both - both.detach() / 2
