"""Every node of a tree of segments against its parent."""

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow, PerToken
from pipelines.rlvr.ops import SAME, group_index


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

    `scale: std` divides by the population deviation of the siblings. Tokens that the policy chose with a probability of `certain` or more
    are not decisions: they get 0 and leave the loss, and so do segments whose value is their parent's. Rows that share a segment hold
    copies of it, which count as one. `credit: whiten` whitens what is left, as the released trainer does.

    >>> import torch
    >>> n = torch.tensor([[0, 3], [0, 4], [1, 5], [1, 6], [2, 7], [2, 8]]); m = torch.ones(6, 2).bool()
    >>> r, g, old = torch.tensor([1.0, 0, 1, 1, 0, 0]), torch.zeros(6).long(), torch.full((6, 2), -1.0)
    >>> A, share = spo_tree(r, g, m[:, 0], m, n, old)
    >>> A[:, 0].tolist(), A[:2, 1].tolist(), share[1].tolist(), share[2].tolist()
    ([0.0, 0.0, 0.5, 0.5, -0.5, -0.5], [0.5, -0.5], [0.0, 1.0], [0.5, 0.0])
    """
    path, depth = _paths(node)
    nodes, path = path.unique(return_inverse=True)
    value, parent_value, deviation, known = _node_values(path, depth, len(nodes), reward, group, scored)
    gain = (value - parent_value) * known
    if scale == "std":
        gain = gain / (deviation + eps)
    token_node = torch.searchsorted(nodes, node)
    uncertain = logp_old < torch.tensor(certain).log() if certain < 1 else torch.ones_like(mask)
    in_tree = (node >= 0) & mask & scored[:, None]
    copies = _copies(node, in_tree)
    kept = in_tree & uncertain & ((value - parent_value).abs() > SAME)[token_node]
    return (gain[token_node] * kept).to(reward.dtype), (kept / copies.clamp(min=1)).to(reward.dtype)


def _node_values(
    path: Tensor, depth: Tensor, n_nodes: int, reward: Tensor, group: Tensor, scored: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Values from the leaves up: V of each node, V of its parent, the deviation among its siblings, whether it has a value.

    Example: four rows, two below node 0 (leaves 2, 3 with rewards 1 and 0), two below node 1 (leaves 4, 5, both 0). The
    deepest level first: V(0) = 0.5 with a deviation of 0.5 among its children, V(1) = 0. Then the root, which is the group:
    0.25 with 0.25.

    >>> path = torch.tensor([[0, 2], [0, 3], [1, 4], [1, 5]]); row = torch.ones(4)
    >>> V = _node_values(path, row.long() * 2, 6, torch.tensor([1.0, 0, 0, 0]), row.long(), row.bool())
    >>> V[0].tolist(), V[1].tolist(), V[2].tolist()
    ([0.5, 0.0, 1.0, 0.0, 0.0, 0.0], [0.25, 0.25, 0.5, 0.5, 0.0, 0.0], [0.25, 0.25, 0.5, 0.5, 0.0, 0.0])

    Args:
        path: int64 [B, D], indices from 0 of each row's nodes, as `_paths` orders them.
        depth: int64 [B], nodes of each row.

    Returns:
        three float64 [n_nodes] and a bool [n_nodes]; a node that only unscored rows have has no value.
    """
    value, parent_value, deviation = torch.zeros(3, n_nodes, dtype=torch.float64).unbind()
    known = torch.zeros(n_nodes, dtype=torch.bool)
    valued = scored & (depth > 0)
    leaf = path.gather(1, (depth - 1).clamp(min=0)[:, None]).squeeze(1)[valued]
    value[leaf], known[leaf] = reward.double()[valued], True
    root, n_roots = group_index(group)  # parents are numbered roots first, then nodes
    for level in range(int(depth.max()) - 1, -1, -1):
        rows = depth > level
        parent_of_rows = path[rows, level - 1] + n_roots if level > 0 else root[rows]
        edges = torch.stack([path[rows, level], parent_of_rows]).unique(dim=1)
        child, parent = edges[:, known[edges[0]]]
        mean, std = _over_children(value[child], parent, n_roots + n_nodes)
        parent_value[child], deviation[child] = mean[parent], std[parent]
        if level > 0:
            inner = parent.unique()
            value[inner - n_roots], known[inner - n_roots] = mean[inner], True
    return value, parent_value, deviation, known


def _over_children(values: Tensor, parent: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Mean and population deviation of the children's values by parent, float64 [size] each; 0 for a parent without children."""

    def total(x: Tensor) -> Tensor:
        return torch.zeros(size, dtype=torch.float64).index_add(0, parent, x)

    count = total(torch.ones_like(values)).clamp(min=1)
    mean = total(values) / count
    return mean, (total((values - mean[parent]) ** 2) / count).sqrt()


def _copies(node: Tensor, in_tree: Tensor) -> Tensor:
    """How many rows hold the token of the same node at the same position, float64 [B, T]."""
    token_id = (node * node.shape[1] + torch.arange(node.shape[1])).flatten().unique(return_inverse=True)[1]
    copies = torch.zeros(int(token_id.max()) + 1, dtype=torch.float64).index_add(
        0, token_id, in_tree.double().flatten()
    )
    return copies[token_id].view_as(node)


def _paths(node: Tensor) -> tuple[Tensor, Tensor]:
    """Nodes of each row in order, int64 [B, D] (the last repeated), and how many there are, int64 [B].

    >>> _paths(torch.tensor([[-1, 4, 4, 7], [-1, 4, 4, 4]]))
    (tensor([[4, 7],
            [4, 4]]), tensor([2, 1]))
    """
    previous = torch.nn.functional.pad(node, (1, 0), value=-1)[:, :-1]
    starts = (node >= 0) & (node != previous)
    depth = starts.sum(1)
    width = max(1, int(depth.max()))
    path = torch.zeros(len(node), width, dtype=torch.int64)
    row, column = starts.nonzero(as_tuple=True)
    path[row, starts.cumsum(1)[row, column] - 1] = node[row, column]
    last = path.gather(1, (depth - 1).clamp(min=0)[:, None])
    return torch.where(torch.arange(width) < depth[:, None], path, last), depth
