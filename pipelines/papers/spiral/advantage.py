"""What a player wins beyond what its role has won so far.

Presets: spiral.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any

import torch
from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow
from pipelines.contract.method import Method


@method(
    paper="2506.24119",
    title="SPIRAL: Self-Play on Zero-Sum Games Incentivizes Reasoning via Multi-Agent Multi-Turn Reinforcement Learning",
    checked="official code (by its lines; the rows of a step enter the baseline together, ours)",
    reads=("reward", "task", "player", "scored", "replayed"),
    zero_variance_groups="learns",
    group_of_one="a row is compared with the steps before",
)
class spiral(Method):
    """A = R - b[game, player];  after a step with n such rows b <- decay^n b + (1 - decay^n) mean R.

    Role-conditioned advantage estimation: who moves first, or holds the better cards, usually wins more, so each player of each game (a
    source of the data) has a baseline of its own, a running mean that begins with 0. A row is compared with the baseline before its own
    reward enters it. The released code updates it as games end, b <- decay b + (1 - decay) R, which depends on their order; here a step's
    games count equally, and with one game a step the two agree. That code has a baseline for each player over all games, the paper one for
    each game and player.
    """

    def __init__(self, *, decay: Annotated[float, Field(gt=0, lt=1)] = 0.95) -> None:
        self.decay = decay
        self.baselines: dict[str, float] = {}

    def __call__(self, reward: PerRow, task: PerRow, player: PerRow, scored: PerRow) -> PerRow:
        """The advantage [B].

        >>> method = spiral(decay=0.5); method.baselines = {"0 1": -0.5}
        >>> zeros, every = torch.zeros(3).long(), torch.ones(3).bool()
        >>> method(torch.tensor([1.0, -1.0, 1.0]), zeros, torch.tensor([0, 1, 1]), every).tolist()
        [1.0, -0.5, 1.5]
        """
        roles = zip(task.tolist(), player.tolist(), strict=True)
        baseline = torch.tensor([self.baselines.get(_role(*role), 0.0) for role in roles])
        return (reward - baseline) * scored

    def on_batch(self, columns: Mapping[str, Any]) -> None:
        """The baselines, for the steps that follow."""
        counts = columns["scored"] & ~columns["replayed"]
        paid: dict[str, list[float]] = {}
        for task, player, reward in zip(
            *(columns[name][counts].tolist() for name in ("task", "player", "reward")), strict=True
        ):
            paid.setdefault(_role(task, player), []).append(reward)
        for role, rewards in paid.items():
            kept = self.decay ** len(rewards)
            mean = math.fsum(rewards) / len(rewards)
            self.baselines[role] = kept * self.baselines.get(role, 0.0) + (1 - kept) * mean

    def state_dict(self) -> dict[str, Any]:
        """The baselines."""
        return {"baselines": self.baselines}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up where `state_dict` left off."""
        self.baselines = dict(state["baselines"])


def _role(task: int, player: int) -> str:
    """Key of a game and a player."""
    return f"{task} {player}"
