"""Correlated Proxies: A New Definition and Improved Mitigation for Reward Hacking.

arXiv 2403.03185. Presets: chi2, chi2_occupancy. Parts: chi2 (divergence), chi2_occupancy (divergence).

The chi-squared divergence to the reference, as a penalty in the reward.

The root of the chi-squared divergence between whole answers, in the loss.
"""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow, PerToken
from pipelines.rlvr.ops import spread_out


def linear_expm1(d: Tensor) -> Tensor:
    """expm1(d), going on linearly from 10 on.

    The two branches are chosen, never added: in float32 a derivative of e^10 that is added and taken off again leaves
    an error as large as the derivative near 0.

    >>> x = torch.tensor([0.0, 12.0], requires_grad=True); linear_expm1(x).sum().backward()
    >>> x.grad.log().tolist()
    [0.0, 10.0]
    """
    edge = torch.tensor(10.0, dtype=d.dtype, device=d.device)
    return torch.where(d <= edge, torch.expm1(d.minimum(edge)), torch.expm1(edge) + (d - edge) * edge.exp())


@method(
    paper="2403.03185",
    title="Correlated Proxies: A New Definition and Improved Mitigation for Reward Hacking",
    checked="official code, 4 cases (the symmetric estimator, per token instead of per sequence)",
    couples="row",
    legal_in=("reward",),
)
def chi2(logp: PerToken, logp_ref: PerToken) -> PerToken:
    """expm1(d) + expm1(-d) with d = logp - logp_ref: never negative, and on samples of the policy its mean is E[pi/ref] - 1.

    The second term has expectation 0 and lowers the variance. Beyond ±10 both continue linearly. In the loss its gradient would be that of
    another quantity, because the samples depend on the policy: it is allowed in the reward only.

    >>> import torch
    >>> chi2(torch.tensor([[0.5, -0.2, 1.5, 0.0]]), torch.zeros(1, 4)).mean().item()
    0.750051
    """
    d = logp - logp_ref
    return linear_expm1(d) + linear_expm1(-d)


@method(
    paper="2403.03185",
    title="Correlated Proxies: A New Definition and Improved Mitigation for Reward Hacking",
    checked="official code, 5 cases (language-model form; the floor's constant is taken off)",
    batch_coupled=True,
    legal_in=("loss",),
)
def chi2_occupancy(
    logp: PerToken,
    logp_ref: PerToken,
    mask: PerToken,
    in_loss: PerRow,
    weight: PerToken,
    *,
    floor: Annotated[float, Field(gt=0)] = 1e-4,
) -> PerToken:
    """sqrt(max(chi2, floor)) - sqrt(floor), chi2 the mean over rows of expm1(d) + expm1(-d), d = log pi / pi_ref of the row.

    Spread over the tokens so that their weighted sum is it. Beyond ±10 both terms continue linearly. At the reference it is 0 and has no
    gradient: the root alone would have an infinite one. `chi2` is the same divergence per token, in the reward. The released code keeps the
    constant sqrt(floor), which has no gradient; ours subtracts it. The paper scans the weight for each task.

    >>> import torch
    >>> d = torch.tensor([0.5, -0.2, 1.5, 0.0])[:, None]; one = torch.ones(4, 1).bool()
    >>> round(0.1 * (chi2_occupancy(d, d * 0, one, one[:, 0], one / 4).mean().item() + 0.01), 6)
    0.086605
    """
    used = mask & in_loss[:, None]
    rows = used.any(1)
    d = ((logp - logp_ref) * used).sum(1)
    value = ((linear_expm1(d) + linear_expm1(-d)) * rows).sum() / rows.sum().clamp(min=1)
    return spread_out(value.clamp(min=floor).sqrt() - floor**0.5, weight)
