"""Group-relative advantages within a tree of rollouts and across the trees of a problem."""

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow, PerToken
from pipelines.rlvr.ops import standardised
from pipelines.rlvr.ops_turns import pair_index


@method(
    paper="2509.21240",
    title="Tree Search for LLM Agent Reinforcement Learning (Tree-GRPO)",
    checked="reconstructed (the sum of the two terms is the paper's; ddof and eps are GRPO's)",
    reduces_to="with every row a tree of its own it is grpo",
)
def tree_grpo(reward: PerRow, group: PerRow, scored: PerRow, mask: PerToken, node: PerToken) -> PerRow:
    """A = z-score of the reward among the rows of its tree + z-score among all rows of its group.

    Rows of a tree share the node of their first trained token. The first term compares continuations of the same turns, so it shows which
    branch was better (a step-level preference without a process reward); a tree of one row, or without differences, adds 0. The second
    keeps trees comparable.

    >>> import torch
    >>> node = torch.tensor([[0, 1], [0, 2], [3, 4], [3, 5]]); m = torch.ones(4, 2).bool(); g = torch.zeros(4).long()
    >>> tree_grpo(torch.tensor([1.0, 0.0, 1.0, 1.0]), g, torch.ones(4).bool(), m, node).tolist()
    [1.2071, -2.2071, 0.5, 0.5]
    """
    first = mask.long().argmax(1, keepdim=True)
    tree = pair_index(group, node.gather(1, first).squeeze(1))
    return (standardised(reward, tree, scored) + standardised(reward, group, scored)).float()
