"""Agentic Reinforcement Learning with Implicit Step Rewards (iStar; first called Online Process Reward Learning).

arXiv 2509.19199. Presets: istar. Parts: trajectory_prm (providers), istar (advantage).

A process reward model that learns which of two episodes of a group succeeded.

An episode's score and the reward of each turn, each against a leave-one-out baseline of its own.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow, PerToken
from pipelines.papers.common.implicit_reward import ImplicitReward
from pipelines.rlvr.ops import group_mean, group_size, group_sum
from pipelines.rlvr.ops_turns import turns_taken, turns_to_tokens

PAPER = {"paper": "2509.19199", "title": "Agentic Reinforcement Learning with Implicit Step Rewards (iStar)"}


@method(
    **PAPER,
    checked="paper (formulas; the mean over steps is that of the official code)",
    makes=("process_reward",),
)
class trajectory_prm(ImplicitReward):
    r"""A language model phi, started from the policy, whose log-ratio to the policy before the step's updates is a reward per token.

        r_t = beta (log phi(y_t) - log old(y_t)),    Q = mean over the turns of sum_t r_t,    loss = -log sigmoid(Q+ - Q-)

    Q+ and Q- are of a successful (score above 1/2) and a failed episode of one group; the loss is the mean over all such pairs of the step.
    Groups without a success, or without a failure, teach nothing.

    Args:
        turns: `mean` as in the released code, or `sum`, the log-ratio of the episode, as in the paper's loss.
    """

    reads = ("logp_old", "turn")

    def __init__(
        self,
        *,
        beta: Annotated[float, Field(gt=0)] = 0.05,
        learning_rate: Annotated[float, Field(gt=0)] = 1e-6,
        max_grad_norm: Annotated[float, Field(gt=0)] = 10.0,
        update_first: bool = False,
        turns: Literal["mean", "sum"] = "mean",
    ) -> None:
        super().__init__(beta=beta, learning_rate=learning_rate, max_grad_norm=max_grad_norm, update_first=update_first)
        self.turns = turns

    def reference_logp(self, tokens: Tensor, columns: dict[str, Any]) -> Tensor:
        """Of the policy that sampled."""
        return columns["logp_old"]

    def teaching(self, columns: dict[str, Any]) -> Tensor:
        """The scored rows of groups with a success and a failure."""
        scored, won = columns["scored"], columns["raw_reward"] > 0.5
        wins, losses = (group_sum((scored & each).double(), columns["group"]) for each in (won, ~won))
        return scored & (wins > 0) & (losses > 0)

    def loss(self, sums: Tensor, columns: dict[str, Any]) -> tuple[Tensor, float]:
        """The mean over pairs, and in how many of them the success has the higher score."""
        if self.turns == "mean":
            sums = sums / turns_of(columns["turn"], columns["mask"])
        rows = self.teaching(columns)
        won = columns["raw_reward"] > 0.5
        same = columns["group"][:, None] == columns["group"]
        better, worse = (same & (rows & won)[:, None] & (rows & ~won)).nonzero().unbind(1)
        margins = sums[better] - sums[worse]
        return torch.nn.functional.softplus(-margins).mean(), float((margins > 0).float().mean())


def turns_of(turn: Tensor, mask: Tensor) -> Tensor:
    """How many turns have a token in the mask, [B]; at least 1, which is that of a row without turns."""
    turn = turn.clamp(min=0)
    return turns_taken(turn, mask, int(turn.max()) + 1).sum(1).clamp(min=1)


@method(
    **PAPER,
    checked="official code (read; its baseline of step rewards is of each episode's first turn alone, the paper's of all)",
    couples="group",
    group_of_one="its turns are compared with each other",
)
def istar(
    reward: PerRow,
    process_reward: PerToken,
    turn: PerToken,
    group: PerRow,
    scored: PerRow,
    mask: PerToken,
    *,
    step_weight: Annotated[float, Field(ge=0)] = 1.0,
) -> PerToken:
    """A_E + step_weight A_S on every token of a turn, with n episodes and m turns in the group:

        A_E = n/(n-1) (R - mean R)                 of the episode
        A_S = m/(m-1) (r - mean r),  r = sum_t r_t   of the turn, over all turns of the group

    An episode alone in its group has no A_E, and a turn alone none of A_S (the released code keeps their scores).

    >>> import torch
    >>> r = torch.tensor([[0.4, 0.1], [-0.1, 0.2]]); k = torch.tensor([[0, 1], [0, 1]]); m = k >= 0
    >>> row, group = torch.ones(2).bool(), torch.zeros(2).long()
    >>> istar(torch.tensor([1.0, 0.0]), r, k, group, row, m).tolist()
    [[1.333333, 0.933333], [-1.333333, -0.933333]]
    """
    mask = mask & scored[:, None]
    n = group_size(group, scored)
    episode = (reward - group_mean(reward, group, scored)) * scored * n / (n - 1).clamp(min=1)
    number = turn.clamp(min=0)  # a row without turns is one
    count = int(number.max()) + 1
    taken = turns_taken(number, mask, count)
    paid = torch.zeros(len(turn), count, dtype=torch.float64).scatter_add_(1, number, process_reward.double() * mask)
    m = group_sum(taken.sum(1).double(), group)[:, None]
    mean = group_sum((paid * taken).sum(1), group)[:, None] / m.clamp(min=1)
    step = (paid - mean) * taken * m / (m - 1).clamp(min=1)
    return ((episode[:, None] + step_weight * turns_to_tokens(step, number)) * mask).float()
