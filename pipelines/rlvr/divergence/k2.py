"""Half the squared log-ratio."""

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerToken


@method(
    paper="http://joschu.net/blog/kl-approx.html",
    title="Approximating KL Divergence",
    checked="third-party code (verl), 4 cases",
    legal_in=("loss",),
    couples="row",
)
def k2(logp: PerToken, logp_ref: PerToken) -> PerToken:
    """(logp - logp_ref)^2 / 2: its gradient on samples of the policy is the gradient of the reverse KL.

    >>> import torch
    >>> k2(torch.tensor([[-1.0, -2.0]]), torch.tensor([[-1.5, -1.0]])).tolist()
    [[0.125, 0.5]]
    """
    return 0.5 * (logp - logp_ref) ** 2
