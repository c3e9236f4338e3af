"""Every branch of a tree against its parent."""

from typing import Annotated, Literal

import torch
from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow, PerToken
from pipelines.rlvr.ops import SAME


@method(
    paper="2505.23564",
    title="Segment Policy Optimization (tree)",
    checked="official code, 8 cases",
    reduces_to="a tree of one level with certain: 1 is grpo, without or with deviation",
)
def spo_tree(
    reward: PerRow,
    group: PerRow,
    scored: PerRow,
    mask: PerToken,
    node: PerToken,
    logp_old: PerToken,
    *,
    scale: Literal["none", "std"] = "none",
    certain: Annotated[float, Field(gt=0, le=1)] = 0.9,
    eps: Annotated[float, Field(gt=0)] = 1e-8,
) -> tuple[PerToken, PerToken]:
    """V(leaf) is the row's reward, V(node) the mean over its children; a segment's tokens get V(node) - V(parent).

    `scale: std` divides by the population deviation of the siblings. Tokens that the policy chose with a probability
    of `certain` or more are no decision: they get 0 and leave the loss, and so do segments that are worth what their parent
    is. Rows that share a segment hold copies of it, which count as one. `credit: whiten` whitens what is left, as the released
    trainer does.

    >>> import torch
    >>> n = torch.tensor([[0, 3], [0, 4], [1, 5], [1, 6], [2, 7], [2, 8]]); m = torch.ones(6, 2).bool()
    >>> r, g, old = torch.tensor([1.0, 0, 1, 1, 0, 0]), torch.zeros(6).long(), torch.full((6, 2), -1.0)
    >>> A, share = spo_tree(r, g, m[:, 0], m, n, old)
    >>> A[:, 0].tolist(), A[:2, 1].tolist(), share[1].tolist(), share[2].tolist()
    ([0.0, 0.0, 0.5, 0.5, -0.5, -0.5], [0.5, -0.5], [0.0, 1.0], [0.5, 0.0])
    """
    path, steps = _paths(node)
    depth = int(steps.max()) if len(steps) else 0
    nodes, flat = path.unique(return_inverse=True)
    count_nodes = len(nodes)
    value = torch.zeros(count_nodes, dtype=torch.float64)
    weight = torch.zeros(count_nodes, dtype=torch.float64)
    leaf = flat.gather(1, (steps - 1).clamp(min=0)[:, None]).squeeze(1)
    use = scored & (steps > 0)
    value.index_put_((leaf[use],), reward.double()[use])
    weight.index_put_((leaf[use],), torch.ones(int(use.sum()), dtype=torch.float64))
    root = torch.unique(group, return_inverse=True)[1]
    roots = int(root.max()) + 1 if len(root) else 0
    above = torch.zeros(count_nodes, dtype=torch.float64)
    spread = torch.zeros(count_nodes, dtype=torch.float64)
    for d in range(depth - 1, -1, -1):
        here = (steps > d) & scored
        child = flat[here, d]
        parent = flat[here, d - 1] + roots if d > 0 else root[here]
        edge = torch.stack([child, parent]).unique(dim=1)
        edge = edge[:, weight[edge[0]] > 0]
        size = count_nodes + roots
        count = torch.zeros(size, dtype=torch.float64).index_add(0, edge[1], torch.ones(edge.shape[1]).double())
        total = torch.zeros(size, dtype=torch.float64).index_add(0, edge[1], value[edge[0]])
        mean = total / count.clamp(min=1)
        square = torch.zeros(size, dtype=torch.float64).index_add(0, edge[1], (value[edge[0]] - mean[edge[1]]) ** 2)
        above[edge[0]] = mean[edge[1]]
        spread[edge[0]] = (square / count.clamp(min=1)).sqrt()[edge[1]]
        if d > 0:
            inner = edge[1].unique()
            value[inner - roots], weight[inner - roots] = mean[inner], 1.0
    gain = (value - above) * (weight > 0)
    gain = gain / (spread + eps) if scale == "std" else gain
    place = torch.searchsorted(nodes, node.clamp(min=0)).clamp(max=max(0, count_nodes - 1))
    decided = logp_old < torch.tensor(certain).log() if certain < 1 else torch.ones_like(mask)
    inside = (node >= 0) & mask & scored[:, None]
    copies = _copies(node, inside)
    kept = inside & decided & ((value - above).abs() > SAME)[place]
    return (gain[place] * kept).to(reward.dtype), (kept / copies.clamp(min=1)).to(reward.dtype)


def _copies(node: torch.Tensor, inside: torch.Tensor) -> torch.Tensor:
    """How many rows hold the token of the same node at the same position, float64 [B, T]."""
    cell = (node * node.shape[1] + torch.arange(node.shape[1])).flatten().unique(return_inverse=True)[1]
    total = torch.zeros(int(cell.max()) + 1, dtype=torch.float64).index_add(0, cell, inside.double().flatten())
    return total[cell].view_as(node)


def _paths(node: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Nodes of each row in order, [B, D] (the last repeated), and how many there are, [B]."""
    before = torch.nn.functional.pad(node, (1, 0), value=-1)[:, :-1]
    new = (node >= 0) & (node != before)
    steps = new.sum(1)
    width = max(1, int(steps.max()))
    path = torch.zeros(len(node), width, dtype=torch.int64)
    row, column = new.nonzero(as_tuple=True)
    path[row, new.cumsum(1)[row, column] - 1] = node[row, column]
    last = path.gather(1, (steps - 1).clamp(min=0)[:, None])
    return torch.where(torch.arange(width) < steps[:, None], path, last), steps
