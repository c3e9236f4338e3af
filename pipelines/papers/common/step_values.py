"""V of states and Q of turns, fitted by Bellman backups over the turns of episodes that any policy played.

Shared by the papers whose V is a soft maximum of Q over the turns that the episodes hold, so that no turn is judged that none of them took.
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from pipelines.contract.provider import ProviderContext
from pipelines.engine import distribution
from pipelines.engine.critic import Critic
from pipelines.papers.common.turn_critics import Episode, drawn, ended, follow, mlp, stacked
from pipelines.rlvr.common.learned_head import LearnedHead
from pipelines.rlvr.ops_turns import turn_ends, turn_starts, turns_taken

DRAWS = 7
"""RNG stream id of the episodes that an update draws."""
ACTION, STATE = slice(0, 2), 2
"""Of the heads: the two estimates of Q, and V."""


class StepValues(LearnedHead):
    """Two estimates of Q(state, turn) and one of V(state) over a copy of the policy's body, with a target copy and a store of episodes.

        Q_i <- r_t + ... + discount^(n - 1) r_(t+n-1) + discount^n V(s_(t+n)),   V <- what `value_loss` makes of min(Q'_1, Q'_2)

    n is `n_steps`, less near the end of an episode: one that the environment ended has V = 0 behind its last turn. Of one that a limit cut
    off nobody knows what its last turn led to (but with `turn_limit_ends`, which takes the turn limit for the end), so that turn is not
    fitted, and those before it look ahead to the state that it was taken in. `tau` is how far the target Q' goes towards Q in an update.
    A subclass says what V is fitted by.
    """

    reads = ("turn", "turn_reward", "reward", "token_penalty")

    def __init__(
        self,
        *,
        learning_rate: float,
        discount: float,
        n_steps: int,
        tau: float,
        epochs: int,
        batch: int,
        capacity: int,
        warm_up: int,
        state_tokens: int | None,
        turn_limit_ends: bool,
    ) -> None:
        self.learning_rate, self.discount, self.n_steps, self.tau = learning_rate, discount, n_steps, tau
        self.epochs, self.batch, self.capacity, self.warm_up = epochs, batch, capacity, warm_up
        self.state_tokens, self.turn_limit_ends = state_tokens, turn_limit_ends
        self.store: list[Episode] = []

    @abstractmethod
    def value_loss(self, excess: Tensor) -> Tensor:
        """What is minimised over V for each min(Q'_1, Q'_2) - V; float, in the shape of the input."""

    def setup(self, context: ProviderContext) -> None:
        """Copy the body."""
        self.seed, self.own_rows = context.seed, 0
        self.build(context, StepHeads)
        self.target = copy.deepcopy(self.network).requires_grad_(False).float()

    @torch.no_grad()
    def fill(self, tokens: Tensor, columns: dict[str, Any]) -> None:
        """`turn_value`, V, and `turn_action_value`, the smaller of both target estimates, float32 [B, S]; 0 where there is no turn."""
        self.own_rows = len(tokens)
        turn, mask, count = columns["turn"], columns["mask"], columns["turn_reward"].shape[1]
        reading, taken = Reading.of(tokens, turn, mask, self.state_tokens), turns_taken(turn, mask, count)
        for name, values in (
            ("turn_value", self._estimates(self.network, reading)[:, STATE]),
            ("turn_action_value", self._estimates(self.target, reading)[:, ACTION].amin(1)),
        ):
            columns[name] = torch.zeros(taken.shape).masked_scatter(taken, values)

    def update(self, tokens: Tensor, columns: dict[str, Any]) -> dict[str, float]:
        """Store the step's episodes, and fit Q and V to what is stored."""
        over = columns["environment_ended"] | (self.turn_limit_ends & ~columns["truncated"])
        latest = ended(tokens, columns | {"over": over[:, None]}, columns["mask"], self.own_rows, row_columns=("over",))
        self.store = [*self.store, *latest][-self.capacity :]
        losses = [0.0, 0.0]
        for epoch in range(self.epochs if self.store else 0):
            draw = distribution.generator(torch.device("cpu"), self.seed, int(columns["step"]), epoch, DRAWS)
            losses = self._fit(stacked(drawn(self.store, self.batch, draw)))
        taken = turns_taken(columns["turn"], columns["mask"], columns["turn_reward"].shape[1])
        means = {
            name: float(columns[f"turn_{name}"][taken].mean()) if taken.any() else 0.0
            for name in ("value", "action_value")
        }
        return {
            "step_values/q_loss": losses[0],
            "step_values/v_loss": losses[1],
            "step_values/episodes": float(len(self.store)),
            **{f"step_values/{name}": mean for name, mean in means.items()},
        }

    def _fit(self, episodes: Episode) -> list[float]:
        """One update of Q, V and the target; returns the losses of Q and V, means over the fitted turns."""
        turn, mask = episodes["turn"], episodes["mask"].bool()
        taken = turns_taken(turn, mask, episodes["paid"].shape[1])
        reading = Reading.of(episodes["token"], turn, mask, self.state_tokens)
        with torch.no_grad():
            value = self._estimates(self.network, reading)[:, STATE]
            action_value = self._estimates(self.target, reading)[:, ACTION].amin(1)
        row = taken.nonzero()[:, 0]
        backup, known = backups(
            episodes["paid"][taken], value, row, episodes["over"][row, 0].bool(), self.discount, self.n_steps
        )
        share = known / known.sum().clamp(min=1)
        places, losses = reading.token.numel(), torch.zeros(2)
        at_action, at_state = torch.zeros(2, places, 2)  # of each position: the goal, and its share of the loss
        at_action[reading.action] = torch.stack([backup, share], 1)
        at_state[reading.state] = torch.stack([action_value, share], 1)
        read = ((at_action[:, 1] + at_state[:, 1]) > 0).view(reading.token.shape)
        for layout in self.passes.layouts(reading.token, read, read.any(1).nonzero().squeeze(1)):
            predicted = self.network(layout)
            goal, weight = at_action[layout.target].to(predicted).unbind(1)
            q_loss = weight @ (predicted[:, ACTION] - goal[:, None]).square().sum(1)
            goal, weight = at_state[layout.target].to(predicted).unbind(1)
            v_loss = (weight * torch.where(weight > 0, self.value_loss(goal - predicted[:, STATE]), 0.0)).sum()
            (q_loss + v_loss).backward()
            losses += torch.stack([q_loss, v_loss]).detach().cpu()
        if known.any():
            self.learn()
            follow(self.target, self.network, self.tau)
        return losses.tolist()

    def _estimates(self, network: Critic, reading: Reading) -> Tensor:
        """Both estimates of Q, and V, of each turn that is read, float32 [N, 3]."""
        read = torch.zeros(reading.token.numel(), dtype=torch.bool)
        read[reading.action] = read[reading.state] = True
        predicted = self.passes.per_token(
            lambda layout, ids: network(layout), reading.token, read.view(reading.token.shape), values=3
        ).flatten(0, 1)
        return torch.cat([predicted[reading.action][:, ACTION], predicted[reading.state][:, STATE, None]], 1)

    def state_dict(self) -> dict[str, Any]:
        """Weights, target, optimizer and stored episodes."""
        return {**super().state_dict(), "target": self.target.state_dict(), "store": list(self.store)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up where `state_dict` left off."""
        super().load_state_dict(state)
        self.target.load_state_dict(state["target"])
        self.store = list(state["store"])


class StepHeads(torch.nn.Module):
    """Q1, Q2 and V of a hidden state [..., width], float [..., 3]; each is an MLP of its own that starts at random."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = torch.nn.ModuleList(mlp(width) for _ in range(3))

    def forward(self, hidden: Tensor) -> Tensor:
        """The three values of each state."""
        return torch.cat([head(hidden) for head in self.heads], -1)


@dataclass(frozen=True)
class Reading:
    """The texts that a critic reads, and where in them it says what the N turns of some episodes are worth, row by row, turn by turn."""

    token: Tensor
    """int64 [R, T]; the last position is padding: no row reaches it."""
    state: Tensor
    """Of each turn the position of its first token, where V is read from all before it; flat index into `token`, int64 [N]."""
    action: Tensor
    """The position behind its last token, where Q is read; int64 [N]."""

    @classmethod
    def of(cls, tokens: Tensor, turn: Tensor, mask: Tensor, state_tokens: int | None) -> Reading:
        """The turns that have a token in `mask`.

        Args:
            tokens: int64 [B, T].
            turn: int64 [B, T], -1 outside turns.
            mask: bool [B, T], nowhere True at the first position.
            state_tokens: as many tokens in front of a turn are its state, and each turn is a text of its own; None: all of them.

        >>> tokens, turn = torch.tensor([[5, 6, 7, 8, 9]]), torch.tensor([[-1, -1, 0, -1, 1]])
        >>> read = Reading.of(tokens, turn, turn >= 0, None)
        >>> read.token.tolist(), read.state.tolist(), read.action.tolist()
        ([[5, 6, 7, 8, 9, 0]], [2, 4], [3, 5])
        >>> read = Reading.of(tokens, turn, turn >= 0, 1)
        >>> read.token.tolist(), read.state.tolist(), read.action.tolist()
        ([[6, 7, 0], [8, 9, 0]], [1, 4], [2, 5])
        """
        first, last = turn_starts(turn, mask).nonzero(), turn_ends(turn, mask).nonzero()[:, 1] + 1
        if state_tokens is None:
            width = tokens.shape[1] + 1
            return cls(pad(tokens, (0, 1)), first[:, 0] * width + first[:, 1], first[:, 0] * width + last)
        texts, states, actions = [], [], []
        for (row, begin), end in zip(first.tolist(), last.tolist(), strict=True):
            low = max(0, begin - state_tokens)
            texts.append(tokens[row, low:end])
            states.append(begin - low)
            actions.append(end - low)
        width = max(actions, default=0) + 1
        token = torch.stack([pad(text, (0, width - len(text))) for text in texts]) if texts else tokens.new_zeros(0, 1)
        own = torch.arange(len(texts)) * width
        return cls(token, own + torch.tensor(states).long(), own + torch.tensor(actions).long())


def backups(
    paid: Tensor, value: Tensor, row: Tensor, over: Tensor, discount: float, n_steps: int
) -> tuple[Tensor, Tensor]:
    """Of each turn the reward of up to `n_steps` turns and the value of the state that they lead to, float [N]; and whether that is known.

    Args:
        paid: float [N], the reward of each turn; the turns of an episode stand together, in order.
        value: float [N], of the state that it was taken in.
        row: int64 [N], its episode.
        over: bool [N], whether its episode ended with its last turn; else it goes on, and nobody knows where: the last turn has 0.
        discount: of each turn.
        n_steps: at least 1.

    >>> value, row, yes = torch.tensor([0.5, 0.25, 1.0, 4.0]), torch.tensor([0, 0, 0, 1]), torch.tensor([True, True, True, False])
    >>> backups(torch.tensor([0.0, 1.0, 2.0, 9.0]), value, row, yes, 0.5, 1)
    (tensor([0.1250, 1.5000, 2.0000, 0.0000]), tensor([ True,  True,  True, False]))
    >>> backups(torch.tensor([0.0, 1.0, 2.0, 9.0]), value, row, yes, 0.5, 2)[0].tolist()
    [0.75, 2.0, 2.0, 0.0]
    """
    index = torch.arange(len(row))
    last = torch.searchsorted(row, row, side="right") - 1
    horizon = torch.minimum(index + n_steps, last + over.long())  # the state that it looks ahead to
    total = torch.zeros_like(value)
    for k in range(int((horizon - index).max()) if len(row) else 0):
        inside = index + k < horizon
        total += torch.where(inside, discount**k * paid[(index + k).clamp(max=len(row) - 1)], 0.0)
    there = value[horizon.clamp(max=len(row) - 1)]
    total += torch.where((index < horizon) & (horizon <= last), discount ** (horizon - index) * there, 0.0)
    return total, index < horizon
