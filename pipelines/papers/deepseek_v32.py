"""DeepSeek-V3.2: what keeps RL stable where rows are off-policy.

arXiv 2512.02556. Presets: deepseek_v32. Parts: opsm (objective), unbiased_k3 (divergence).
"""

from typing import Annotated

import torch
from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerToken
from pipelines.rlvr.ops import clipped, dual_clipped, ratio, row_mean

PAPER, TITLE = "2512.02556", "DeepSeek-V3.2: Pushing the Frontier of Open Large Language Models"


@method(
    paper=PAPER,
    title=TITLE + " (off-policy sequence mask)",
    checked="third-party code (TRL), 6 cases",
    zero_gradient_at_zero_advantage=True,
    stops_gradient="the mask is detached",
    ratio_level="token",
    reduces_to="delta above every row's divergence is clip",
)
def opsm(
    logp: PerToken,
    logp_old: PerToken,
    advantage: PerToken,
    mask: PerToken,
    *,
    delta: Annotated[float, Field(gt=0)] = 0.5,
    low: Annotated[float, Field(gt=0, le=1)] = 0.2,
    high: Annotated[float, Field(gt=0)] = 0.2,
    dual: Annotated[float, Field(gt=1)] | None = None,
) -> PerToken:
    """PPO's clipped loss (`clip`) times M (section 3.1, eq. 8 and 9): negative rows that the policy has left are not pushed further.

        M = 0 where A < 0 and mean_t (logp_old - logp) > delta over the row, otherwise 1

    The paper's old policy is the inference engine: with `old_logp: sampler`, the default, updates and mismatch both count; with
    `old_logp: trainer` only the step's own updates do. The paper names no delta; 0.5 is the example in TRL, slime's default is 1e-4.
    Masked tokens stay in the denominators.

    >>> import torch
    >>> lp, m = torch.tensor([[-1.0, -1.0], [-1.0, -0.5]]), torch.ones(2, 2).bool()
    >>> opsm(lp, lp + 0.6, -torch.ones(2, 2), m)[0].tolist(), opsm(lp, lp, -torch.ones(2, 2), m)[0].tolist()
    ([0.0, 0.0], [1.0, 1.0])
    """
    far = row_mean((logp_old - logp.detach()).masked_fill(~mask, 0.0), mask)[:, None] > delta
    loss = dual_clipped(clipped(ratio(logp, logp_old), advantage, low, high), advantage, dual)
    return loss * ~(far & (advantage < 0))


@method(
    paper=PAPER,
    title=TITLE + " (unbiased KL estimate)",
    checked="third-party code (TRL), 5 cases",
    couples="row",
    legal_in=("loss",),
    reduces_to="the value of k3 where the policy is the one that sampled",
)
def unbiased_k3(logp: PerToken, logp_old: PerToken, logp_ref: PerToken) -> PerToken:
    """rho (exp(d) - d - 1), with d = logp_ref - logp and rho = exp(logp - logp_old), both with gradient (section 3.1, eq. 7).

    The ratio makes value and gradient those of KL(policy, reference) on samples of the old policy; the gradient of k3 alone is biased even
    on policy. Both exponents are clamped to ±20.

    >>> import torch
    >>> lp, old, ref = torch.tensor([[-1.0, -2.0]]), torch.tensor([[-1.0, -2.5]]), torch.tensor([[-1.5, -1.0]])
    >>> unbiased_k3(lp, old, ref).tolist()
    [[0.106531, 1.184247]]
    """
    d = (logp_ref - logp).clamp(-20, 20)
    return ratio(logp, logp_old) * (torch.expm1(d) - d)
