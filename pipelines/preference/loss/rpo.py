"""Graded scores: the implied margin is fitted to the margin of the scores."""

from typing import Annotated, Literal

import torch.nn.functional as F
from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerPair


@method(
    paper="2502.00203",
    title="Reward-aware Preference Optimization (RPO), table 1",
    checked="reconstructed; the worked example is NeMo-Aligner's",
    reduces_to="dpo for eta to infinity (backward_kl)",
)
def rpo(
    chosen_logp: PerPair, rejected_logp: PerPair, chosen_logp_ref: PerPair, rejected_logp_ref: PerPair,
    chosen_score: PerPair, rejected_score: PerPair,
    *, beta: Annotated[float, Field(gt=0)] = 0.2, eta: Annotated[float, Field(ge=0)] = 1.0,
    distance: Literal["backward_kl", "forward_kl", "squared"] = "backward_kl",
) -> PerPair:  # fmt: skip
    """Distance of D = beta d (d as in `dpo`) from E = eta (chosen_score - rejected_score); 0 where the two are equal.

    backward_kl: KL(Bern(sigmoid(E)) || Bern(sigmoid(D))); forward_kl: the converse; squared: (D - E)^2. A pair whose scores contradict
    its order (E < 0) is fitted as it is. All is computed from log sigmoid, because sigmoid(E) is 1 in float32 from E = 17 on.

    >>> import torch
    >>> p = lambda x: torch.tensor([x])
    >>> [round(rpo(p(3.0), p(0.0), p(0.0), p(0.0), p(1.2), p(0.0), distance=d).item(), 6) for d in ("backward_kl", "forward_kl", "squared")]
    [0.03532, 0.038401, 0.36]
    """
    implied = beta * ((chosen_logp - chosen_logp_ref) - (rejected_logp - rejected_logp_ref))
    wanted = eta * (chosen_score - rejected_score)
    if distance == "squared":
        return (implied - wanted) ** 2
    p, q = (wanted, implied) if distance == "backward_kl" else (implied, wanted)
    first = F.logsigmoid(p) - F.logsigmoid(q)
    second = F.logsigmoid(-p) - F.logsigmoid(-q)
    return p.sigmoid() * first + (-p).sigmoid() * second
