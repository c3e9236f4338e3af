"""The chi-squared divergence to the reference, as a penalty in the reward."""

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerToken
from pipelines.rlvr.ops import linear_expm1


@method(
    paper="2403.03185",
    title="Correlated Proxies: A New Definition and Improved Mitigation for Reward Hacking",
    checked="official code, 4 cases (the symmetric estimator, per token instead of per sequence)",
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
