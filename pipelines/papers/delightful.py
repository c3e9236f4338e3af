"""Policy gradient gated by how much of a surprise a success is.

Presets: delightful.
"""

from typing import Annotated

from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerToken


@method(
    paper="2603.14608",
    title="Delightful Policy Gradient",
    checked="paper",
    zero_gradient_at_zero_advantage=True,
    not_reinforce="every token is weighed by its gate",
    stops_gradient="the gate is detached",
    reduces_to="a large eta is reinforce with half the gradient",
)
def delightful(
    logp: PerToken,
    advantage: PerToken,
    *,
    eta: Annotated[float, Field(gt=0)] = 1.0,
) -> PerToken:
    """REINFORCE times a sigmoid of delight, which is the advantage times the token's surprise under the present policy.

        l = -sigmoid(-A logp / eta) A logp, the gate without gradient

    Rare successes count fully, rare failures little, likely tokens half: a failure that the policy hardly ever commits does not take the
    update over. It reads no ratio, and the gate's weight depends on the scale of the advantages: keep those near 1. For on-policy runs.

    >>> import torch
    >>> delightful(torch.tensor([[-2.0, -2.0, -0.0]]), torch.tensor([[1.0, -1.0, 1.0]])).tolist()  # gates 0.8808, 0.1192, 0.5
    [[1.761594, -0.238406, 0.0]]
    """
    gate = (-advantage * logp.detach() / eta).sigmoid()
    return -gate * advantage * logp
