"""SPA-RL: Reinforcing LLM Agents via Stepwise Progress Attribution.

arXiv 2505.20732. Presets: spa. Parts: progress (providers), spa (shaping).

What each turn contributes to the outcome, by a model whose contributions are trained to add up to it.

Turns are paid their progress towards the outcome, and for actions that the environment could execute.
"""

from __future__ import annotations

from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor

from pipelines.contract.catalogue import method
from pipelines.contract.columns import Column, PerRow, PerToken, PerTurn, Phase
from pipelines.contract.provider import ProviderContext
from pipelines.engine.critic import zero_head
from pipelines.rlvr.common.learned_head import LearnedHead
from pipelines.rlvr.common.scored_rows import read_at
from pipelines.rlvr.ops_turns import turn_ends, turns_taken

COLUMNS = {
    "turn_progress": Column(
        "B S",
        "float32",
        Phase.ADVANTAGE,
        "a progress model",
        "What the turn contributed to the outcome.",
        part=True,
        hint="Train a progress model: providers: [progress].",
        span=(-0.2, 0.4),
    ),
}


@method(
    paper="2505.20732",
    title="SPA-RL: Reinforcing LLM Agents via Stepwise Progress Attribution (the progress estimator)",
    checked="official code (read; it learns beside the policy instead of before it)",
    makes=("turn_progress",),
)
class progress(LearnedHead):
    """c_k = head(last hidden state at the end of turn k), by the starting policy's body with a zero-initialised scalar head, trained with

        loss = mean over rows of (sum_k c_k - outcome)^2

    The outcome is the score before shaping. The released code reads the logits at the turn's last token with a linear layer, and learns
    from episodes of the starting policy before PPO begins; here the model learns from each step's rows, before it predicts their turns'
    progress with `update_first`, else after. It does not learn from rows whose outcome is not known.
    """

    reads = ("turn", "turn_reward")

    def __init__(
        self,
        *,
        learning_rate: Annotated[float, Field(gt=0)] = 1e-5,
        epochs: Annotated[int, Field(ge=1)] = 1,
        update_first: bool = True,
    ) -> None:
        self.learning_rate, self.epochs, self.update_first = learning_rate, epochs, update_first

    def setup(self, context: ProviderContext) -> None:
        """Copy the policy's body."""
        self.outcome_tokens = context.outcome_tokens
        self.build(context, zero_head)
        self.metrics: dict[str, float] = {}

    def fill(self, tokens: Tensor, columns: dict[str, Any]) -> None:
        """`turn_progress` [B, S]."""
        self.metrics = self._learn(tokens, columns) if self.update_first else {}
        turn = columns["turn"]
        contributions = self._contributions(tokens, turn_ends(turn, columns["mask"]))
        empty = torch.zeros(columns["turn_reward"].shape)
        columns["turn_progress"] = empty.scatter_add(1, turn.clamp(min=0), contributions)

    def update(self, tokens: Tensor, columns: dict[str, Any]) -> dict[str, float]:
        """Learn from the outcomes, unless that has happened before."""
        return self.metrics if self.update_first else self._learn(tokens, columns)

    @torch.no_grad()
    def _contributions(self, tokens: Tensor, ends: Tensor) -> Tensor:
        """c at the last token of each turn, float32 [B, T]; 0 elsewhere."""
        return self.passes.per_token(lambda layout, ids: self.network(layout), *read_at(tokens, ends))[:, 1:]

    def _learn(self, tokens: Tensor, columns: dict[str, Any]) -> dict[str, float]:
        """Steps on the squared error of the sums.

        A sum couples a row's turns, which a layout may have in several passes, so its derivative is taken first:
        d loss / d c_k = 2 (sum - outcome) / rows, the same for each turn of the row.
        """
        known = self.outcome_tokens(columns)
        ends = turn_ends(columns["turn"], known)
        rows = ends.any(1).nonzero().squeeze(1)
        if not len(rows):
            return {}
        ids, positions = read_at(tokens, ends)
        metrics: dict[str, float] = {}
        for _ in range(self.epochs):
            total = self._contributions(tokens, ends).sum(1)
            error = total - columns["raw_reward"]
            slope = (2 * error / len(rows))[:, None].expand(positions.shape).flatten()
            for layout in self.passes.layouts(ids, positions, rows):
                values = self.network(layout)
                (values * slope[layout.target].to(values.device)).sum().backward()
            self.learn()
            mean = float(total[rows].mean())
            metrics = {"progress/loss": float(error[rows].square().mean()), "progress/outcome_mean": mean}
        return metrics


@method(
    paper="2505.20732",
    title="SPA-RL: Reinforcing LLM Agents via Stepwise Progress Attribution (the rewards of turns)",
    checked="official code (read; its factor of the turns that are left is not in the paper and not here)",
    couples="row",
    shapes_turns=True,
)
def spa(
    reward: PerRow,
    turn_reward: PerTurn,
    turn_progress: PerTurn,
    turn_valid: PerTurn,
    turn: PerToken,
    mask: PerToken,
    step: int,
    *,
    progress: Annotated[float, Field(ge=0)] = 1.0,
    grounding: Annotated[float, Field(ge=0)] = 0.5,
    exact: bool = False,
    warmup: Annotated[int, Field(ge=0)] = 0,
) -> PerTurn:
    """The reward of turn k, in place of all of the row's rewards:

        r_k = progress c_k + grounding g_k

    c_k is the contribution that the progress model predicts, g_k is 1 where the turn's action could be executed. (The released code takes
    the last turn's as executable: no reply follows it.) With `exact` the K turns share the difference between the outcome and the
    contributions' sum: c_k + (R - sum c) / K. The first `warmup` steps keep the turns' own rewards, while the model learns.

    >>> import torch
    >>> c, g = torch.tensor([[0.1, 0.3, 0.5]]), torch.tensor([[1.0, 0.0, 1.0]])
    >>> earned, k = torch.tensor([[0.0, 0.0, 1.0]]), torch.arange(3)[None]
    >>> spa(torch.ones(1), earned, c, g, k, k >= 0, 0).tolist()
    [[0.6, 0.3, 1.0]]
    >>> spa(torch.ones(1), earned, c, g, k, k >= 0, 0, exact=True, grounding=0.0).tolist()
    [[0.133333, 0.333333, 0.533333]]
    """
    if step < warmup:
        return turn_reward
    taken = turns_taken(turn, mask, turn_reward.shape[1])
    count = taken.sum(1).clamp(min=1)
    contribution = turn_progress * taken
    if exact:
        contribution = contribution + ((reward - contribution.sum(1)) / count)[:, None] * taken
    return (progress * contribution + grounding * turn_valid) * taken
