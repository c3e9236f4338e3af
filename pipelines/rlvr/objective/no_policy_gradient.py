"""No policy gradient."""

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerToken


@method(
    paper="folklore",
    title="No policy gradient: divergence and auxiliary losses alone",
    checked="closed form",
    not_reinforce="it is 0",
)
def no_policy_gradient(logp: PerToken) -> PerToken:
    """0 everywhere, for recipes whose other terms of the loss say all that is learned: distillation from a teacher's distribution.

    >>> import torch
    >>> no_policy_gradient(torch.tensor([[-1.0, -2.0]])).tolist()
    [[0.0, 0.0]]
    """
    return 0.0 * logp
