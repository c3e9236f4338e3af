"""The plain log-ratio estimator of the KL to the reference."""

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerToken


@method(
    paper="http://joschu.net/blog/kl-approx.html",
    title="Approximating KL Divergence",
    checked="third-party code (verl), 4 cases",
    legal_in=("reward",),
    couples="row",
)
def k1(logp: PerToken, logp_ref: PerToken) -> PerToken:
    """logp - logp_ref: unbiased value; as a loss its expected gradient is zero, so it belongs in the reward.

    >>> import torch
    >>> k1(torch.tensor([[-1.0, -2.0]]), torch.tensor([[-1.5, -1.0]])).tolist()
    [[0.5, -1.0]]
    """
    return logp - logp_ref
