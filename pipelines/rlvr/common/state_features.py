"""Features of the texts that turns begin with, and bonuses of states from networks on them, which learn beside the policy.

A state is known by what the policy was shown since its last turn (before its first turn: by the prompt), as hashed n-grams of tokens, so
no tokenizer and no encoder of text is needed, and two texts that share much are near each other.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from pipelines.contract.columns import PerRow, PerToken, PerTurn
from pipelines.contract.method import Method

if TYPE_CHECKING:
    from pipelines.contract.rollout import SetupContext

STATE_TOKENS, STATE_FEATURES = 64, 256
"""Of a state: the last tokens that are read, and the length of what they are hashed to."""
ACTION_TOKENS, ACTION_FEATURES = 16, 32
"""The same of an action, which is the text of a turn."""
HIDDEN = 64
GRAMS = 3
"""Longest n-gram."""
ABSENT = -1
BEGUN = (1e-4, 0.0, 1.0)
"""Count, mean and variance before the first value, as in the released code of rllte."""


@dataclass(frozen=True)
class Visits:
    """What the scored rows of a step went through: N states, in which turns were taken, and M moves between them."""

    states: Tensor
    """Features, float64 [N, STATE_FEATURES]; the states of a row stand together, in the order of its turns."""
    keys: Tensor
    """`turn_state` of each, int64 [N]."""
    rows: Tensor
    """Row of each, int64 [N]."""
    turns: Tensor
    """The turn that is taken in it, int64 [N]."""
    before: Tensor
    """Of each move: the state that it begins in, int64 [M]. The state in which an episode ends is shown to nobody: no move leads there."""
    actions: Tensor
    """Features of the texts of the moves, float64 [M, ACTION_FEATURES]."""

    @property
    def after(self) -> Tensor:
        """Of each move: the state that it leads to, int64 [M]."""
        return self.before + 1

    def episodes(self) -> Iterator[slice]:
        """The states of one row after another."""
        end = 0
        for count in self.rows.unique_consecutive(return_counts=True)[1].tolist():
            yield slice(end, end + count)
            end += count


def visits_of(turn_state: Tensor, token: Tensor, turn: Tensor, scored: Tensor) -> Visits:
    """The states and moves of a step.

    Args:
        turn_state: int64 [B, S].
        token: int64 [B, T].
        turn: int64 [B, T], -1 outside turns.
        scored: bool [B]; other rows are left out.

    >>> token, turn = torch.tensor([[4, 5, 9, 6, 8, 8]]), torch.tensor([[-1, -1, 0, -1, 1, 1]])
    >>> step = visits_of(torch.tensor([[3, 7]]), token, turn, torch.ones(1).bool())
    >>> step.keys.tolist(), step.turns.tolist(), step.before.tolist(), step.after.tolist(), step.states.shape[0]
    ([3, 7], [0, 1], [0], [1], 2)
    """
    shown: list[Tensor] = []
    actions: list[Tensor] = []
    places: list[tuple[int, int, int]] = []
    before: list[int] = []
    for row in scored.nonzero().flatten().tolist():
        inside = (turn[row] >= 0).nonzero().flatten()
        turn_index = turn[row][inside]
        first = torch.ones_like(turn_index, dtype=torch.bool)
        first[1:] = turn_index[1:] != turn_index[:-1]
        cuts = [*first.nonzero().flatten().tolist(), len(inside)]
        end = 0
        for place, (low, high) in enumerate(pairwise(cuts)):
            begin, stop, number = int(inside[low]), int(inside[high - 1]) + 1, int(turn_index[low])
            if place > 0:
                before.append(len(places) - 1)
            shown.append(token[row, max(end, begin - STATE_TOKENS) : begin])
            actions.append(token[row, max(begin, stop - ACTION_TOKENS) : stop])
            places.append((row, number, int(turn_state[row, number])))
            end = stop
    rows, turns, keys = torch.tensor(places, dtype=torch.int64).reshape(-1, 3).unbind(1)
    moves = torch.tensor(before, dtype=torch.int64)
    taken = [actions[index] for index in before]
    return Visits(hashed(shown, STATE_FEATURES, keys), keys, rows, turns, moves, hashed(taken, ACTION_FEATURES))


def hashed(texts: Sequence[Tensor], width: int, names: Tensor | None = None) -> Tensor:
    """Signed hashed features of texts, float64 [n, width], each with a mean square of 1.

    They are the n-grams of up to `GRAMS` tokens, and each token with its distance from the end, so that a map tells where its marks are.

    Args:
        texts: token ids of each, int64.
        names: int64 [n], what stands for a text that is empty; without it, an empty text has no features.

    >>> one, same, other = hashed([torch.tensor([5, 6, 7]), torch.tensor([5, 6, 7]), torch.tensor([5, 6, 8])], 64)
    >>> bool((one == same).all()), round(float(one.square().mean()), 6), 0.0 < float((one * other).mean()) < 0.9
    (True, 1.0, True)
    """
    longest = max([1, *(len(text) for text in texts)])
    ids = torch.full((len(texts), longest), ABSENT)
    for index, text in enumerate(texts):
        ids[index, longest - len(text) :] = text
        if not len(text) and names is not None:
            ids[index, -1] = -2 - names[index]
    features = torch.zeros(len(texts), width, dtype=torch.float64)
    place = torch.arange(longest, 0, -1)
    gram = torch.zeros_like(ids)
    for length in range(GRAMS + 1):
        if length < GRAMS:  # the n-grams that end at each token; length 0 makes those of one token
            gram = _mixed(torch.nn.functional.pad(gram, (1, 0))[:, :-1] * (length > 0) + _mixed(ids))
            there = torch.nn.functional.pad(ids, (length, 0), value=ABSENT)[:, :longest] != ABSENT
            code = _mixed(gram + length)
        else:
            there, code = ids != ABSENT, _mixed(_mixed(ids) + place)
        sign = torch.where((code >> 40) & 1 > 0, 1.0, -1.0).double() * there
        features.scatter_add_(1, (code >> 8) % width, sign)
    return features * (width**0.5) / features.norm(dim=1, keepdim=True).clamp(min=1e-9)


def _mixed(codes: Tensor) -> Tensor:
    """int64 codes that look random, the same for the same ones, never negative (the mixer of splitmix64, on 63 bits)."""
    mask = (1 << 63) - 1
    x = codes * -7046029254386353131 & mask
    x = (x ^ (x >> 30)) * -4658895280553007687 & mask
    x = (x ^ (x >> 27)) * -7723592293110705685 & mask
    return x ^ (x >> 31)


def network(inputs: int, outputs: int) -> nn.Sequential:
    """One hidden layer, float64: sums in another order of the rows differ by nothing that shows. `begin` sets its parameters."""
    first, last = (
        nn.utils.skip_init(nn.Linear, *size, dtype=torch.float64) for size in ((inputs, HIDDEN), (HIDDEN, outputs))
    )
    return nn.Sequential(first, nn.ReLU(), last)


def begin(net: nn.Module, seed: int) -> None:
    """Draw the parameters of all linear layers as PyTorch does, from a generator of their own: no other draw changes, and none changes
    them."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for layer in net.modules():
            if isinstance(layer, nn.Linear):
                bound = layer.in_features**-0.5
                for each in (layer.weight, layer.bias):
                    each.uniform_(-bound, bound, generator=generator)


class Dynamics(nn.Module):
    """An encoder phi of states that learns which action led from one to the next, and what the action leads to."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.encode = network(STATE_FEATURES, width)
        self.inverse = network(2 * width, ACTION_FEATURES)
        self.forward_model = network(width + ACTION_FEATURES, width)

    def errors(self, step: Visits) -> tuple[Tensor, Tensor]:
        """Mean squared errors of the action that is inferred, and of phi of the next state that is foretold, each float64 [M]."""
        phi = self.encode(step.states)
        before, after = phi[step.before], phi[step.after]
        actions = self.inverse(torch.cat([before, after], 1))
        foretold = self.forward_model(torch.cat([before, step.actions], 1))
        return (actions - step.actions).square().mean(1), (foretold - after).square().mean(1)

    def loss(self, step: Visits, forward_share: float = 0.0) -> Tensor:
        """(1 - forward_share) times the mean error of actions plus forward_share times that of next states."""
        inverse, forward = self.errors(step)
        return (1 - forward_share) * inverse.mean() + forward_share * forward.mean()


class Distillation(nn.Module):
    """A network that learns what another, random one makes of states; where it errs, they are new to it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.predictor = network(STATE_FEATURES, width)
        self.target = network(STATE_FEATURES, width).requires_grad_(False)

    def errors(self, states: Tensor) -> Tensor:
        """Mean squared error of each of the states [n], float64 [n]."""
        return (self.predictor(states) - self.target(states)).square().mean(1)


class StateBonus(Method):
    """Adds weight * the bonus of the state that it led to to each turn's reward; the last turn of a row leads to none that is shown.

    A step is paid by what was learned in the steps before, and then learned from: `updates` steps of Adam on all of its moves together, so
    the order of rows changes nothing. The networks begin as the run's seed says. A subclass says what they are, what they pay and what
    they learn.
    """

    net: Any
    """What `networks` makes."""

    def __init__(self, *, weight: float, width: int, learning_rate: float, updates: int) -> None:
        self.weight, self.width, self.learning_rate, self.updates = weight, width, learning_rate, updates
        self.seed, self.mean_bonus, self.last_loss = 0, 0.0, 0.0
        self._begin()

    @abstractmethod
    def networks(self) -> nn.Module:
        """What it is made of, new; parameters that require no gradient stay as they begin."""

    @abstractmethod
    def exploration_bonus(self, step: Visits) -> Tensor:
        """The bonus of the state that each move led to, float64 [M]."""

    def loss(self, step: Visits) -> Tensor | None:
        """What the networks learn from a step with at least one move; None where they learn nothing."""
        return None

    def remember(self, step: Visits) -> None:
        """Take in what the step visited, after it was paid."""

    def setup(self, context: SetupContext) -> None:
        """Begin with networks of the run's seed."""
        self.seed = context.seed
        self._begin()

    def _begin(self) -> None:
        self.net = self.networks()
        begin(self.net, self.seed)
        self.learned = [each for each in self.net.parameters() if each.requires_grad]
        self.optimizer = torch.optim.Adam(self.learned, lr=self.learning_rate) if self.learned else None

    def __call__(
        self, turn_reward: PerTurn, turn_state: PerTurn, token: PerToken, turn: PerToken, scored: PerRow
    ) -> PerTurn:
        """The rewards of turns [B, S] with the bonus; learns from the step."""
        step = visits_of(turn_state, token, turn, scored)
        paid = torch.zeros(turn_reward.shape, dtype=torch.float64)
        if len(step.before):
            with torch.no_grad():
                values = self.exploration_bonus(step)
            self.mean_bonus = float(values.mean())
            paid[step.rows[step.before], step.turns[step.before]] = values
            self._learn(step)
        if len(step.states):
            self.remember(step)
        return (turn_reward + self.weight * paid).float()

    def _learn(self, step: Visits) -> None:
        for _ in range(self.updates):
            with torch.enable_grad():
                loss = self.loss(step)
            if loss is None or self.optimizer is None:
                return
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.last_loss = float(loss.detach())

    def metrics(self) -> dict[str, float]:
        """The mean bonus of a move in the step, before the weight, and the loss of the last update."""
        return {"bonus": self.mean_bonus, "loss": self.last_loss}

    def state_dict(self) -> dict[str, Any]:
        """The seed, from which what never learns is made again, and the parameters that learn with Adam's moments, in order."""
        moments = [self.optimizer.state.get(each, {}) for each in self.learned] if self.optimizer else []
        return {
            "seed": self.seed,
            "parameters": [each.detach().flatten().tolist() for each in self.learned],
            "adam": [{name: value.flatten().tolist() for name, value in of.items()} for of in moments],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up where `state_dict` left off."""
        self.seed = state["seed"]
        self._begin()
        with torch.no_grad():
            for each, values, moments in zip(self.learned, state["parameters"], state["adam"], strict=True):
                each.copy_(torch.tensor(values, dtype=torch.float64).reshape(each.shape))
                if self.optimizer is not None and moments:
                    self.optimizer.state[each] = {
                        "step": torch.tensor(moments["step"][0], dtype=torch.float32),
                        **{
                            name: torch.tensor(moments[name], dtype=torch.float64).reshape(each.shape)
                            for name in ("exp_avg", "exp_avg_sq")
                        },
                    }


def merged(moments: Sequence[float], values: Tensor) -> list[float]:
    """Count, mean and variance with more values [n], n > 0, as `TorchRunningMeanStd` of rllte has them; one value has no variance.

    >>> [round(x, 6) for x in merged(BEGUN, torch.tensor([1.0, 0.0, 1.0, 0.0]))]
    [4.0001, 0.499988, 0.333356]
    """
    count, mean, variance = moments
    size, difference = len(values), float(values.mean()) - mean
    spread = float(values.var()) if size > 1 else 0.0
    total = count + size
    square = variance * count + spread * size + difference**2 * count * size / total
    return [total, mean + difference * size / total, square / total]
