"""A stretch between two branchings is worth what the mean reward changes across it."""

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow, PerToken
from pipelines.rlvr.ops import group_mean


@method(
    paper="https://github.com/ZiqiZhao1/ROSE-rl",
    title="Reinforced Efficient Reasoning via Semantically Diverse Exploration (ROSE)",
    checked="official code (read; values keyed by node, where the code keys them by position)",
    reduces_to="without branches it is grpo with scale: none",
)
def rose(
    reward: PerRow,
    correct: PerRow,
    node: PerToken,
    group: PerRow,
    scored: PerRow,
    mask: PerToken,
    *,
    length: Annotated[float, Field(ge=0)] = 0.0,
) -> PerToken:
    """V(node) - V(the node before), V the mean reward of the scored rows through a node, and of the group before the first one.

    Along a row they add up to its reward less the group's mean. With `length` above 0 a correct row that is longer than the shortest
    correct one of its group loses |A| (1 - (left of the shortest / left of its own)^length) after the last node that both share.

    >>> import torch
    >>> n = torch.tensor([[0] * 4 + [1] * 4, [0] * 4 + [2] * 3 + [3], [0] * 4 + [2] * 3 + [4], [5] * 8])
    >>> r = torch.tensor([1.0, 0, 1, 0]); one = torch.ones(4).bool()
    >>> rose(r, r, n, torch.zeros(4).long(), one, n >= 0)[:, [0, 4, 7]].tolist()
    [[0.166667, 0.333333, 0.333333], [0.166667, -0.166667, -0.5], [0.166667, -0.166667, 0.5], [-0.5, -0.5, -0.5]]
    """
    inside = (node >= 0) & scored[:, None]
    places = torch.arange(node.shape[1])
    previous = torch.nn.functional.pad(node, (1, 0), value=-1)[:, :-1]
    begins = inside & (node != previous)
    nodes, index = node.unique(return_inverse=True)
    rows, columns = begins.nonzero(as_tuple=True)
    none, passed = torch.zeros(len(nodes), dtype=torch.float64), index[rows, columns]
    total = none.index_add(0, passed, reward.double()[rows])
    count = none.index_add(0, passed, torch.ones_like(reward.double()[rows]))
    value = (total / count.clamp(min=1))[index]
    mean = group_mean(reward, group, scored)[:, None]
    before = torch.where(previous >= 0, torch.nn.functional.pad(value, (1, 0))[:, :-1], mean)
    start = torch.where(begins, places, 0).cummax(1).values
    advantage = value - before.gather(1, start)
    if length > 0:
        advantage = _shortened(advantage, node, correct > 0, group, inside, length)
    return (advantage * mask).float()


def _shortened(advantage: Tensor, node: Tensor, correct: Tensor, group: Tensor, inside: Tensor, power: float) -> Tensor:
    """Correct rows that are longer than the shortest correct one of their group lose after the last node both have, [B, T]."""
    advantage = advantage.clone()
    size = inside.sum(1).tolist()
    for number in group.unique().tolist():
        rows = [row for row in range(len(node)) if group[row] == number and correct[row]]
        if not rows:
            continue
        shortest = min(rows, key=lambda row: size[row])
        for row in rows:
            differs = node[row] != node[shortest]
            own = max(1, int(differs.sum()))
            factor = 1 - ((own - size[row] + size[shortest]) / own) ** power
            advantage[row] -= advantage[row].abs() * factor * differs
    return advantage
