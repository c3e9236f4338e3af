"""MiniLLM: Knowledge Distillation of Large Language Models.

Presets: minillm.

A token is worth what the teacher thinks of everything that follows it.
"""

from typing import Annotated

import torch
from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerToken


@method(
    paper="2306.08543",
    title="MiniLLM: Knowledge Distillation of Large Language Models",
    checked="official code, 5 cases",
    couples="row",
    zero_variance_groups="learns",
    group_of_one="the teacher judges each row by itself",
    provenance=("model",),
)
def minillm(
    logp_old: PerToken,
    logp_teacher: PerToken,
    mask: PerToken,
    *,
    discount: Annotated[float, Field(ge=0, le=1)] = 0.95,
    scaling: Annotated[float, Field(gt=0)] = 0.5,
    bound: Annotated[float, Field(gt=0)] = 100.0,
    length_norm: bool = True,
) -> PerToken:
    """Mean discounted return of the teacher's log-ratio: A_t = sum_{i >= t} discount^(i - t) r_i / (tokens from t on).

        r_t = (logp_teacher - logp_old) / scaling, within ± bound

    It is the policy gradient of KL(policy || teacher) of whole answers: a token pays for what it leads to. `distillation`, the credit of
    `on_policy_distillation`, takes r_t alone (discount 0), which has less variance and does not look ahead. `length_norm` divides by the
    tokens that are left, so that long answers are not avoided. Without it A_t is the return. Rewards of a verifier are not read.

    Take it where a teacher of the same vocabulary is at hand and short-sighted distillation leaves answers that begin well and end badly.
    The preset adds the exact divergence of the next token (the paper's single-step term) by `generalised_jsd`, and whitens. The paper's
    rollouts from a mixture with the teacher and its language-modelling loss on a corpus are left out.

    >>> import torch
    >>> one = torch.ones(1, 3).bool(); p = torch.tensor([[-1.0, -1.0, -4.0]])
    >>> minillm(p, p * 0 - 1, one, discount=1.0, scaling=1.0).tolist()  # only the last token was unlike the teacher
    [[1.0, 1.5, 3.0]]
    """
    reward = ((logp_teacher - logp_old).double() / scaling).clamp(-bound, bound) * mask
    total, left = torch.zeros_like(reward[:, 0]), torch.zeros_like(reward[:, 0])
    out = torch.zeros_like(reward)
    for t in reversed(range(reward.shape[1])):
        here = mask[:, t]
        total = torch.where(here, reward[:, t] + discount * total, total)
        left = left + here
        out[:, t] = total / left.clamp(min=1) if length_norm else total
    return (out * mask).float()
