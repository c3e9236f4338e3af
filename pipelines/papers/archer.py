"""ArCHer: Training Language Model Agents via Hierarchical Multi-Turn RL.

arXiv 2402.19446. Presets: archer. Parts: archer (providers), archer (advantage).

Critics of whole turns that learn from stored episodes.

How much better a turn is than the state that it was taken in, by critics of whole turns.
"""

from __future__ import annotations

import copy
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import pad

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow, PerToken, PerTurn
from pipelines.contract.provider import ProviderContext
from pipelines.engine import distribution
from pipelines.engine.critic import Critic
from pipelines.papers.common.turn_critics import drawn, ended, follow, mlp, stacked
from pipelines.rlvr.common.learned_head import LearnedHead
from pipelines.rlvr.ops_turns import turn_ends, turn_starts, turns_taken, turns_to_tokens
from pipelines.rlvr.turn_values import following_values

DRAWS = 7
"""RNG stream id of the episodes that an update draws."""


@method(
    paper="2402.19446",
    title="ArCHer: Training Language Model Agents via Hierarchical Multi-Turn RL (utterance-level critics)",
    checked="official code (read)",
    makes=("turn_value", "turn_action_value"),
)
class archer(LearnedHead):
    """Two estimates each of Q(state, turn) and V(state), over a copy of the policy's body, with target copies and a store of episodes.

        Q_i <- r + discount V'_i(next state), 0 after the last turn;   V_i <- Q'_i(state, turn);   ' <- (1 - tau) ' + tau present

    After each step its episodes join the store, which forgets the oldest beyond `capacity`. Each of the `epochs` that follow draws `batch`
    episodes from the store for Q, whose turns any policy may have chosen, and as many of the step's own for V, whose turns are the current
    policy's; the targets are updated after each. `turn_value` and `turn_action_value` are the smaller of the two estimates. In the first
    `warm_up` steps of the run the policy is not updated.

    Different from the released code: V is fitted to turns that the current policy has taken, where the code has the policy take a new turn
    in each stored state; episodes are sampled, and all turns of one are fitted, where the code samples turns; state and turn are read in
    one pass by the policy's own architecture, V from the state's last token and Q from the turn's, where RoBERTa reads the two separately.
    """

    reads = ("turn", "turn_reward", "reward", "token_penalty")

    def __init__(
        self,
        *,
        learning_rate: Annotated[float, Field(gt=0)] = 1e-5,
        discount: Annotated[float, Field(ge=0, le=1)] = 0.95,
        tau: Annotated[float, Field(gt=0, le=1)] = 0.1,
        epochs: Annotated[int, Field(ge=1)] = 10,
        batch: Annotated[int, Field(ge=1)] = 32,
        capacity: Annotated[int, Field(ge=1)] = 10_000,
        warm_up: Annotated[int, Field(ge=0)] = 0,
    ) -> None:
        self.learning_rate, self.discount, self.tau = learning_rate, discount, tau
        self.epochs, self.batch, self.capacity, self.warm_up = epochs, batch, capacity, warm_up
        self.store: list[dict[str, Tensor]] = []

    def setup(self, context: ProviderContext) -> None:
        """Copy the body."""
        self.seed, self.outcome_tokens, self.own_rows = context.seed, context.outcome_tokens, 0
        self.build(context, TurnHeads)
        # float32, since a small share of a small difference is lost in bfloat16
        self.target = copy.deepcopy(self.network).requires_grad_(False).float()

    @torch.no_grad()
    def fill(self, tokens: Tensor, columns: dict[str, Any]) -> None:
        """`turn_value` and `turn_action_value` [B, S]."""
        self.own_rows = len(tokens)
        episodes = {"token": tokens, "turn": columns["turn"], "mask": columns["mask"], "paid": columns["turn_reward"]}
        actions, states = self._estimates(self.network, episodes)
        columns["turn_action_value"], columns["turn_value"] = actions.amin(-1), states.amin(-1)

    def update(self, tokens: Tensor, columns: dict[str, Any]) -> dict[str, float]:
        """Store the step's episodes, and fit both critics."""
        latest = ended(tokens, columns, self.outcome_tokens(columns), self.own_rows)
        self.store = [*self.store, *latest][-self.capacity :]
        losses = [0.0, 0.0]
        for epoch in range(self.epochs if latest else 0):
            draw = distribution.generator(torch.device("cpu"), self.seed, int(columns["step"]), epoch, DRAWS)
            losses = self._fit(stacked([*drawn(self.store, self.batch, draw), *drawn(latest, self.batch, draw)]))
        filled = {f"archer/{name}": columns[f"turn_{name}"] for name in ("value", "action_value")}
        taken = turns_taken(columns["turn"], columns["mask"], columns["turn_reward"].shape[1])
        means = {name: float(value[taken].mean()) if taken.any() else 0.0 for name, value in filled.items()}
        return {
            "archer/q_loss": losses[0],
            "archer/v_loss": losses[1],
            "archer/episodes": float(len(self.store)),
            **means,
        }

    def _fit(self, episodes: dict[str, Tensor]) -> list[float]:
        """One update of both critics and the targets: Q on the first `batch` episodes, V on the others; returns their losses."""
        turn, mask = episodes["turn"], episodes["mask"].bool()
        taken = turns_taken(turn, mask, episodes["paid"].shape[1])
        with torch.no_grad():
            actions, states = self._estimates(self.target, episodes)
        next_values = torch.stack([following_values(states[..., i], taken) for i in (0, 1)], -1)
        goals = {"q": episodes["paid"][..., None] + self.discount * next_values, "v": actions}
        first = torch.arange(len(turn)) < self.batch
        marks = {
            "q": pad(turn_ends(turn, mask) & first[:, None], (1, 0)),
            "v": pad(turn_starts(turn, mask) & ~first[:, None], (0, 1)),
        }
        wanted, weight = torch.zeros(*marks["q"].shape, 4), torch.zeros(*marks["q"].shape, 4)
        for at, name in enumerate(("q", "v")):
            positions = slice(2 * at, 2 * at + 2)
            side = (1, 0) if name == "q" else (0, 1)
            per_token = torch.stack([turns_to_tokens(goals[name][..., i], turn) for i in (0, 1)], -1)
            wanted[..., positions] = pad(per_token, (0, 0, *side))
            weight[..., positions] = (marks[name] / marks[name].sum().clamp(min=1))[..., None]
        fitted = weight.sum(-1) > 0
        losses = [0.0, 0.0]
        for layout in self.passes.layouts(pad(episodes["token"], (0, 1)), fitted, fitted.any(1).nonzero().squeeze(1)):
            predicted = self.network(layout)
            own = (goal.flatten(0, 1)[layout.target].to(predicted) for goal in (wanted, weight))
            error = _weighted(predicted, *own)
            error.sum().backward()
            losses = [losses[at] + float(error[:, 2 * at : 2 * at + 2].detach().sum()) for at in (0, 1)]
        self.learn()
        follow(self.target, self.network, self.tau)
        return losses

    def _estimates(self, network: Critic, episodes: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Both estimates of Q and of V for each turn, float32 [B, S, 2] each; 0 for turns without a token in `mask`.

        V is read in front of the turn's first token, Q in front of what follows its last one, which no position has to be.
        """
        turn, mask, count = episodes["turn"], episodes["mask"].bool(), episodes["paid"].shape[1]
        starts, ends = turn_starts(turn, mask), turn_ends(turn, mask)
        read = pad(starts, (0, 1)) | pad(ends, (1, 0))
        predicted = self.passes.per_token(
            lambda layout, ids: network(layout), pad(episodes["token"], (0, 1)), read, values=4
        )
        index = turn.clamp(min=0)[..., None].expand(*turn.shape, 2)
        empty = torch.zeros(len(turn), count, 2)
        actions = empty.scatter_add(1, index, predicted[:, 1:, :2] * ends[..., None])
        return actions, empty.scatter_add(1, index, predicted[:, :-1, 2:] * starts[..., None])

    def state_dict(self) -> dict[str, Any]:
        """Weights, targets, optimizer and stored episodes."""
        return {**super().state_dict(), "target": self.target.state_dict(), "store": list(self.store)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up where `state_dict` left off."""
        super().load_state_dict(state)
        self.target.load_state_dict(state["target"])
        self.store = list(state["store"])


class TurnHeads(torch.nn.Module):
    """Q1, Q2, V1 and V2 of a hidden state [..., width], float [..., 4]; each is an MLP of its own that starts at random."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = torch.nn.ModuleList(mlp(width) for _ in range(4))

    def forward(self, hidden: Tensor) -> Tensor:
        """The four values of each state."""
        return torch.cat([head(hidden) for head in self.heads], -1)


def _weighted(predicted: Tensor, wanted: Tensor, weight: Tensor) -> Tensor:
    """Squared errors, each with its weight; an entry whose weight is 0 has no error."""
    return weight * (predicted - wanted).square()


@method(
    paper="2402.19446",
    title="ArCHer: Training Language Model Agents via Hierarchical Multi-Turn RL (advantage of an utterance)",
    checked="official code (read)",
    couples="row",
    group_of_one="compares with the critic, not with a group",
    zero_variance_groups="learns",
)
def archer_advantage(
    turn_action_value: PerTurn, turn_value: PerTurn, turn: PerToken, mask: PerToken, scored: PerRow
) -> PerToken:
    """Every token of turn k gets Q(s_k, a_k) - V(s_k), as the provider `archer` estimates both; no reward is read here.

    The released code's baseline of single tokens, which is off by default, is not here.

    >>> import torch
    >>> Q, V, k = torch.tensor([[0.75, 0.25]]), torch.tensor([[0.5, 0.5]]), torch.tensor([[0, 0, 1]])
    >>> archer_advantage(Q, V, k, k >= 0, torch.ones(1).bool()).tolist()
    [[0.25, 0.25, -0.25]]
    """
    return turns_to_tokens(turn_action_value - turn_value, turn) * (mask & scored[:, None])
