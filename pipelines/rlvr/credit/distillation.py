"""A teacher's log-probabilities of the policy's own tokens as a reward per token."""

from typing import Annotated

from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerToken


@method(
    paper="2306.13649",
    title="On-Policy Distillation of Language Models: Learning from Self-Generated Mistakes (GKD, reverse KL)",
    checked="closed form",
    reduces_to="weight 0 and task 1 leave the advantages as they are",
    provenance=("model",),
    couples="row",
)
def distillation(
    advantage: PerToken,
    logp_teacher: PerToken,
    logp_old: PerToken,
    mask: PerToken,
    *,
    weight: Annotated[float, Field(ge=0)] = 1.0,
    task: Annotated[float, Field(ge=0)] = 0.0,
) -> PerToken:
    """A_t = task A_t + weight (log teacher(y_t) - log pi(y_t)).

    On the policy's own samples that is minus the single-sample estimate of the reverse KL from policy to teacher at each
    position, with no credit for later ones (discount 0); its policy gradient is the gradient of that KL with the prefixes
    held fixed. With `task` the verifier's reward counts too. The paper's general form interpolates divergences and mixes in a
    fixed data set; this is the on-policy reverse KL alone.

    >>> import torch
    >>> distillation(torch.ones(1, 2), torch.tensor([[-1.0, -2.0]]), torch.tensor([[-2.0, -0.5]]), torch.ones(1, 2).bool()).tolist()
    [[1.0, -1.5]]
    """
    return (task * advantage + weight * (logp_teacher - logp_old)) * mask
