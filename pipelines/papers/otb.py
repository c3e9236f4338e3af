"""The Optimal Token Baseline: Variance Reduction for Long-Horizon LLM-RL.

arXiv 2602.07078. Presets: otb. Parts: collision (providers), otb (advantage).

How peaked the policy is at each token.

Return against a baseline of its own for each place in the answer, which weighs the group's rows by what their gradients have summed to.
"""

from __future__ import annotations

from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor

from pipelines.contract.catalogue import method
from pipelines.contract.columns import Column, PerRow, PerToken, Phase
from pipelines.contract.provider import Provider, ProviderContext
from pipelines.rlvr.common.estimate import returns_to_go
from pipelines.rlvr.ops import group_size, group_sum
from pipelines.rlvr.ops_turns import pair_index

COLUMNS = {
    "collision": Column(
        "B T",
        "float32",
        Phase.ADVANTAGE,
        "the policy",
        "Probability that two draws at the token's place agree: the sum of the squared probabilities, before the step's updates.",
        part=True,
        automatic="collision",
        span=(0.3, 1.0),
    ),
}


@method(
    paper="2602.07078",
    title="The Optimal Token Baseline: Variance Reduction for Long-Horizon LLM-RL (the sum of squared probabilities)",
    checked="closed form",
    makes=("collision",),
)
class collision(Provider):
    """Sum over the vocabulary of squared probabilities at each trained token, at the policy's temperature; one forward pass."""

    reads_network = True

    def setup(self, context: ProviderContext) -> None:
        """Note the policy."""
        self.policy, self.passes = context.policy, context.passes

    @torch.no_grad()
    def fill(self, tokens: Tensor, columns: dict[str, Any]) -> None:
        """`collision` [B, T]."""
        logarithm = self.passes.per_token(
            lambda layout, ids: self.policy.score(layout, ids, entropy="collision")[1], tokens, columns["mask"]
        )
        columns["collision"] = logarithm.exp() * columns["mask"]


@method(
    paper="2602.07078",
    title="The Optimal Token Baseline: Variance Reduction for Long-Horizon LLM-RL",
    checked="third-party code (verl, brought there by the authors), 10 cases",
    couples="group",
)
def otb(
    immediate_reward: PerToken,
    logp_old: PerToken,
    collision: PerToken,
    mask: PerToken,
    group: PerRow,
    scored: PerRow,
    *,
    zero_tail: bool = False,
    eps: Annotated[float, Field(gt=0)] = 1e-8,
) -> PerToken:
    """Reward still to come at the k-th trained token, minus a mean of it over the group's rows that have such a token.

        A_k = G_k - sum_j W_jk G_jk / (sum_j W_jk + eps);   W_k = sum_{i <= k} 1 - 2 p_i + sum_v p_i(v)^2

    1 - 2 p + sum p^2 is the squared norm of the gradient of log p by the logits, so a row weighs as much as its gradients so far vary:
    the baseline of least variance, from forward passes alone. Environment tokens are skipped. A place that only one row reaches has its
    return as the baseline, so advantage 0; with `zero_tail` it has none, and the tail of the longest row keeps its return (verl does so for
    several turns, and not for one). A group of one gets 0 (verl keeps its return). For long answers or many turns whose gradients surge.

    >>> import torch
    >>> half = torch.full((2, 2), 0.5); m = torch.tensor([[1, 1], [1, 0]]).bool(); r = torch.tensor([[0.0, 1.0], [0.0, 0.0]])
    >>> p = torch.tensor([[0.5, 0.5], [0.25, 0.5]])  # W: 0.5 and 1 in the first row, 1 in the second
    >>> otb(r, p.log(), half, m, torch.zeros(2).long(), m[:, 0]).tolist()
    [[0.666667, 0.0], [-0.333333, 0.0]]
    """
    trained = mask & scored[:, None]
    returns = returns_to_go(immediate_reward, trained, 1.0)
    norm = (1 - 2 * logp_old.double().exp() + collision.double()).clamp(min=0)
    energy = (norm * trained).cumsum(1)[trained]
    place = pair_index(group[:, None].expand_as(mask)[trained], trained.cumsum(1)[trained])
    baseline = group_sum(energy * returns[trained], place) / (group_sum(energy, place) + eps)
    if zero_tail:
        baseline = baseline * (group_sum(torch.ones_like(energy), place) > 1)
    compared = (group_size(group, scored) > 1)[:, None]
    return ((returns - torch.zeros_like(returns).masked_scatter(trained, baseline)) * compared).float()
