"""A token that several rollouts share gets the mean of their advantages."""

import torch

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerToken


@method(
    paper="2507.19849",
    title="Agentic Reinforced Policy Optimization, hard advantage attribution",
    checked="reconstructed (from the paper's description; the official default is the soft form, which is no credit part)",
)
def arpo_hard(advantage: PerToken, mask: PerToken, node: PerToken) -> PerToken:
    """Mean advantage over the rows that have the token's tree node at this position; unshared tokens keep their own.

    >>> import torch
    >>> A = torch.tensor([[0.9, 0.9], [-0.9, -0.9]]); n = torch.tensor([[0, 1], [0, 2]])
    >>> arpo_hard(A, torch.ones(2, 2).bool(), n).tolist()
    [[0.0, 0.9], [0.0, -0.9]]
    """
    in_node = mask & (node >= 0)
    position = torch.arange(mask.shape[1]).expand_as(node)
    token_id = (node * mask.shape[1] + position).flatten().unique(return_inverse=True)[1]
    zeros = torch.zeros(int(token_id.max()) + 1, dtype=torch.float64)
    total = zeros.index_add(0, token_id, (advantage.double() * in_node).flatten())
    count = zeros.index_add(0, token_id, in_node.double().flatten())
    mean = (total / count.clamp(min=1))[token_id].view_as(advantage).float()
    return torch.where(in_node, mean, advantage)
