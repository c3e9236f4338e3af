"""Classifiers of success that learn from stored episodes: from the state of each turn, and from the problem alone."""

from __future__ import annotations

from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from pipelines.contract.catalogue import method
from pipelines.contract.provider import ProviderContext
from pipelines.engine import distribution
from pipelines.rlvr.ops_turns import returns_to_go, turn_starts, turns_to_tokens
from pipelines.rlvr.providers._episodes import Episode, drawn, ended, mlp, stacked
from pipelines.rlvr.providers._learned_head import LearnedHead

DRAWS = 7
"""RNG stream id of the episodes that an update draws."""


@method(
    paper="2406.11896",
    title="DigiRL: Training In-The-Wild Device-Control Agents with Autonomous Reinforcement Learning (step and instruction critics)",
    checked="official code (read)",
    makes=("turn_value", "instruction_value"),
)
class digirl(LearnedHead):
    """Probabilities that the return-to-go is above 0, over a copy of the policy's body with a store of episodes, by cross-entropy:

        turn_value          from the state in which a turn is taken, the smaller of two estimates
        instruction_value   from the state before the first turn, by a head of its own

    After each step its episodes join the store, which forgets the oldest beyond `capacity`; each of the `epochs` that follow samples
    `batch` of them, whichever policy played them, and fits all their turns. The return-to-go is discounted by `discount`. In the first
    `warm_up` steps of the run the policy is not updated.

    Different from the released code: one body is trained by all three heads, where its step critics read frozen features of text and screen
    and its instruction critic has a body of its own; episodes are sampled, and all turns of one fitted, where it samples turns.
    """

    reads = ("turn", "turn_reward", "reward", "token_penalty")

    def __init__(
        self,
        *,
        learning_rate: Annotated[float, Field(gt=0)] = 1e-4,
        discount: Annotated[float, Field(ge=0, le=1)] = 0.5,
        epochs: Annotated[int, Field(ge=1)] = 5,
        batch: Annotated[int, Field(ge=1)] = 32,
        capacity: Annotated[int, Field(ge=1)] = 2000,
        warm_up: Annotated[int, Field(ge=0)] = 0,
    ) -> None:
        self.learning_rate, self.discount, self.epochs = learning_rate, discount, epochs
        self.batch, self.capacity, self.warm_up = batch, capacity, warm_up
        self.store: list[Episode] = []

    def setup(self, context: ProviderContext) -> None:
        """Copy the body."""
        self.seed, self.outcome_tokens, self.own_rows = context.seed, context.outcome_tokens, 0
        self.build(context, SuccessHeads)

    @torch.no_grad()
    def fill(self, tokens: Tensor, columns: dict[str, Any]) -> None:
        """`turn_value` [B, S] and `instruction_value` [B]; 0 where a row has no turn."""
        self.own_rows = len(tokens)
        turn, starts = columns["turn"], turn_starts(columns["turn"], columns["mask"])
        logits = self.passes.per_token(lambda layout, ids: self.network(layout), tokens, starts, values=3)
        likely = logits.sigmoid() * starts[..., None]
        columns["turn_value"] = torch.zeros(columns["turn_reward"].shape).scatter_add(
            1, turn.clamp(min=0), likely[..., :2].amin(-1)
        )
        columns["instruction_value"] = (likely[..., 2] * _first(starts)).sum(1)

    def update(self, tokens: Tensor, columns: dict[str, Any]) -> dict[str, float]:
        """Store the step's episodes, and fit the classifiers to what is stored."""
        self.store = [*self.store, *ended(tokens, columns, self.outcome_tokens(columns), self.own_rows)][
            -self.capacity :
        ]
        losses = [0.0, 0.0]
        for epoch in range(self.epochs if self.store else 0):
            draw = distribution.generator(torch.device("cpu"), self.seed, int(columns["step"]), epoch, DRAWS)
            losses = self._fit(stacked(drawn(self.store, self.batch, draw)))
        return {
            "digirl/step_loss": losses[0],
            "digirl/instruction_loss": losses[1],
            "digirl/episodes": float(len(self.store)),
        }

    def _fit(self, episodes: Episode) -> list[float]:
        """One update; returns the mean cross-entropies of the step critics, added up, and of the instruction critic."""
        turn, starts = episodes["turn"], turn_starts(episodes["turn"], episodes["mask"].bool())
        success = turns_to_tokens(returns_to_go(episodes["paid"], self.discount) > 0, turn)
        first = _first(starts)
        weight = torch.stack([starts / starts.sum(), starts / starts.sum(), first / first.sum()], -1)
        losses = torch.zeros(3)
        for layout in self.passes.layouts(episodes["token"], starts, starts.any(1).nonzero().squeeze(1)):
            logits = self.network(layout)
            wanted, share = (x.flatten(0, 1)[layout.target].to(logits) for x in (success, weight))
            error = share * binary_cross_entropy_with_logits(
                logits, wanted[:, None].expand_as(logits), reduction="none"
            )
            error.sum().backward()
            losses += error.detach().sum(0).cpu()
        self.learn()
        return [float(losses[0] + losses[1]), float(losses[2])]

    def state_dict(self) -> dict[str, Any]:
        """Weights, optimizer and stored episodes."""
        return {**super().state_dict(), "store": list(self.store)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up where `state_dict` left off."""
        super().load_state_dict(state)
        self.store = list(state["store"])


class SuccessHeads(torch.nn.Module):
    """Two log-odds of success from a state, by MLPs, and one from a problem, linear: of hidden states [..., width], float [..., 3]."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = torch.nn.ModuleList([mlp(width), mlp(width), torch.nn.Linear(width, 1)])

    def forward(self, hidden: Tensor) -> Tensor:
        """The three log-odds of each state."""
        return torch.cat([head(hidden) for head in self.heads], -1)


def _first(starts: Tensor) -> Tensor:
    """The first True of each row, bool [B, T]."""
    return starts & (starts.cumsum(1) == 1)
