"""DigiRL: Training In-The-Wild Device-Control Agents with Autonomous Reinforcement Learning.

arXiv 2406.11896. Presets: digirl. Parts: digirl (providers), digirl (advantage), digirl (replay).

Classifiers of success that learn from stored episodes: from the state of each turn, and from the problem alone.

Turns that made success likelier are imitated, and the others are not trained.

Episodes that went better than their problem let expect train, those of earlier steps too.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from pipelines.contract.catalogue import method
from pipelines.contract.columns import Column, PerRow, PerToken, PerTurn, Phase
from pipelines.contract.method import PolicyUpdate, Replay
from pipelines.contract.provider import ProviderContext
from pipelines.engine import distribution
from pipelines.papers.common.turn_critics import Episode, drawn, ended, mlp, stacked
from pipelines.rlvr.common.learned_head import LearnedHead
from pipelines.rlvr.common.stored_rows import append, row_of
from pipelines.rlvr.ops_turns import returns_to_go, turn_starts, turns_taken, turns_to_tokens
from pipelines.rlvr.turn_values import following_values, turn_payments

COLUMNS = {
    "instruction_value": Column(
        "B",
        "float32",
        Phase.ADVANTAGE,
        "a critic of problems",
        "Its probability that the problem is solved, before the first turn.",
        part=True,
        hint="Add critics that classify: providers: [digirl].",
        span=(0.05, 0.9),
    ),
}

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


@method(
    paper="2406.11896",
    title="DigiRL: Training In-The-Wild Device-Control Agents with Autonomous Reinforcement Learning (the filter on the step advantage)",
    checked="official code (read) for form: released; doubly_robust and the threshold after others' summaries of the paper",
    couples="row",
    group_of_one="compares with the critic, not with a group",
    zero_variance_groups="learns",
)
def digirl_advantage(
    turn_value: PerTurn,
    turn_reward: PerTurn,
    turn: PerToken,
    reward: PerRow,
    token_penalty: PerToken,
    mask: PerToken,
    scored: PerRow,
    *,
    form: Literal["doubly_robust", "released"] = "doubly_robust",
    lam: Annotated[float, Field(ge=0, le=1)] = 0.5,
    threshold: float = 0.05,
) -> PerToken:
    """1 for every token of a turn h with A(h) > threshold, 0 for others, for objective: reinforce:

        doubly_robust:  A = G + (1 - G) (V(h + 1) + r - V(h))
        released:       A = G + V(h + 1) + r - V(h)

    G = sum_k lam^(k - h) r_k is the discounted reward from this turn on; for an outcome at the end it is the paper's lam^(H - h) r_H. Near
    a success the outcome decides; far from it, and in a failed episode, the critic's value of the next state: a turn of a failed episode
    that led to a better state is imitated too. V is 0 after the last turn. The paper's threshold is 1 / H, H the most turns of an episode.
    Rewards are meant to be 0 or 1; G is clipped to [0, 1] where it weights the critic.

    >>> import torch
    >>> V, k = torch.tensor([[0.25, 0.75]] * 2), torch.tensor([[0, 0, 1]] * 2)
    >>> r, one = torch.tensor([[0.0, 1.0], [0.0, 0.0]]), torch.ones(2).bool()
    >>> digirl_advantage(V, r, k, r.sum(1), 0.0 * k, k >= 0, one).tolist()  # A: 0.75 and 1; 0.5 and -0.75
    [[1.0, 1.0, 1.0], [1.0, 1.0, 0.0]]
    """
    taken = turns_taken(turn, mask, turn_reward.shape[1])
    value = torch.where(taken, turn_value.double(), 0.0)
    paid = turn_payments(reward, turn_reward, turn, mask, token_penalty)
    progress = following_values(value, taken) + paid - value
    outcome = returns_to_go(paid, lam)
    share = 1 - outcome.clamp(0, 1) if form == "doubly_robust" else torch.ones_like(outcome)
    chosen = taken & (outcome + share * progress > threshold)
    return turns_to_tokens(chosen, turn) * (mask & scored[:, None])


HAIR = 1e-6
"""A row this much below the bound is still at it."""


@method(
    paper="2406.11896",
    title="DigiRL: Training In-The-Wild Device-Control Agents with Autonomous Reinforcement Learning (the instruction-level curriculum)",
    checked="official code (read; stored rows keep the values that they were stored with)",
    reads=("instruction_value",),
    reduces_to="share 1 and stored 0 is no_replay",
)
class digirl_replay(Replay):
    """Of the step's rows and the `capacity` last stored ones, those in the top `share` by R - V(problem) train.

    R is the row's reward and V(problem) the instruction critic's probability of success (`providers: [digirl]`): successes on problems that
    looked hard come first, those on easy ones later, and a threshold among the successes excludes all failures. The threshold is the
    quantile of all of them, ties included; rows of the step below it leave the loss, and up to `stored` earlier rows that reach it join,
    sampled without replacement; with `stored` 0 the step's best rows train in any case. Stored rows keep their advantages, and nothing
    corrects for the policy that played them.

    The released code evaluates all stored episodes again with the current critics; here a row keeps the value from when it was played.
    """

    def __init__(
        self,
        *,
        share: Annotated[float, Field(gt=0, le=1)] = 0.1,
        stored: Annotated[int, Field(ge=0)] = 32,
        capacity: Annotated[int, Field(ge=0)] = 2000,
    ) -> None:
        self.share, self.stored, self.capacity = share, stored, capacity
        self.rows: list[dict[str, Any]] = []

    def updates(self, columns: dict[str, Any], generator: torch.Generator) -> list[PolicyUpdate]:
        """The step's own update, with the rows that are left of it and the stored ones that join; then remember the step's."""
        gain = (columns["reward"] - columns["instruction_value"]).double()
        own = columns["in_loss"].nonzero().squeeze(1).tolist()
        gains = torch.cat([gain[own], torch.tensor([row["gain"] for row in self.rows], dtype=torch.float64)])
        if not own:
            return [PolicyUpdate(columns)]
        best = gains if self.stored else gains[: len(own)]
        bound = min(float(torch.quantile(gains, 1 - self.share)), float(best.max())) - HAIR
        useful = [row for row in self.rows if row["gain"] >= bound]
        chosen = torch.randperm(len(useful), generator=generator)[: self.stored].tolist()
        out = dict(columns)
        if chosen:
            out = append(columns, [useful[i]["columns"] for i in chosen])
        left = out["in_loss"].clone()
        left[: len(gain)] &= gain >= bound
        out["in_loss"] = left
        self.rows += [{"gain": float(gain[i]), "columns": row_of(columns, i)} for i in own]
        self.rows = self.rows[max(0, len(self.rows) - self.capacity) :]
        return [PolicyUpdate(out)]

    def state_dict(self) -> dict[str, Any]:
        """The stored rows."""
        return {"rows": self.rows}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up where `state_dict` left off."""
        self.rows = list(state["rows"])
