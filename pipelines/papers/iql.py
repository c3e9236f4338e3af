"""Implicit Q-learning: Offline Reinforcement Learning with Implicit Q-Learning.

arXiv 2110.06169. Presets: iql. Parts: iql (providers), iql (advantage).

Values of states and turns of stored episodes, where the value of a state is a soft maximum over the turns that were taken in it.

Turns are imitated by how far they are better than the state that they were taken in.
"""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow, PerToken, PerTurn
from pipelines.papers.common.step_values import StepValues
from pipelines.rlvr.ops_turns import turns_to_tokens


@method(
    paper="2110.06169",
    title="Offline Reinforcement Learning with Implicit Q-Learning (expectile regression)",
    checked="official code (read)",
    makes=("turn_value", "turn_action_value"),
)
class iql(StepValues):
    """Q(state, turn) and V(state) by expectile regression over the turns of stored episodes, whichever policy played them:

        V minimises |expectile - 1(d < 0)| d^2,   d = min(Q'_1, Q'_2)(s, a) - V(s)
        Q_i <- r + discount V(next state), 0 after the end

    With `expectile` 0.5 V is the mean over the turns that were taken in a state, that is SARSA; towards 1 it comes to the best of them, and
    no turn is asked about that no episode holds. So the good beginning of one episode and the good end of another make a way that nobody
    went. `n_steps` has Q look ahead over so many turns of its own episode before it asks V, as the options of a fixed length of OTA
    (2505.12737) do: fewer backups from the goal to the start, but those turns are the stored policy's.

    After each step its episodes join the store, which forgets the oldest beyond `capacity`; each of the `epochs` that follow draws `batch`
    of them, fits all their turns, and moves the target Q' by `tau`. In the first `warm_up` steps of the run the policy is not updated. The
    critics read the conversation up to a turn; with `state_tokens` only its last tokens, for environments whose observation is the state:
    the same state, reached on two ways, then has the same value. An episode that the limit of turns cut off goes on, as far as values are
    concerned, unless `turn_limit_ends`.

    Different from the released code: one body is trained by all three heads and all are fitted at once, where Q, V and the policy are
    networks of their own and V is updated first; episodes are drawn, and all turns of one fitted, where it draws turns; `tau` is larger,
    since updates are fewer.
    """

    def __init__(
        self,
        *,
        expectile: Annotated[float, Field(gt=0, lt=1)] = 0.7,
        learning_rate: Annotated[float, Field(gt=0)] = 1e-4,
        discount: Annotated[float, Field(ge=0, le=1)] = 0.99,
        n_steps: Annotated[int, Field(ge=1, le=10_000)] = 1,
        tau: Annotated[float, Field(gt=0, le=1)] = 0.05,
        epochs: Annotated[int, Field(ge=1)] = 10,
        batch: Annotated[int, Field(ge=1)] = 32,
        capacity: Annotated[int, Field(ge=1)] = 10_000,
        warm_up: Annotated[int, Field(ge=0)] = 0,
        state_tokens: Annotated[int, Field(ge=1)] | None = None,
        turn_limit_ends: bool = False,
    ) -> None:
        super().__init__(
            learning_rate=learning_rate, discount=discount, n_steps=n_steps, tau=tau, epochs=epochs, batch=batch, capacity=capacity,
            warm_up=warm_up, state_tokens=state_tokens, turn_limit_ends=turn_limit_ends,
        )  # fmt: skip
        self.expectile = expectile

    def value_loss(self, excess: Tensor) -> Tensor:
        """|expectile - 1(d < 0)| d^2."""
        return torch.where(excess > 0, self.expectile, 1 - self.expectile) * excess.square()


@method(
    paper="2110.06169",
    title="Offline Reinforcement Learning with Implicit Q-Learning (policy extraction)",
    checked="official code (read)",
    couples="row",
    group_of_one="compares with the critic, not with a group",
    zero_variance_groups="learns",
)
def iql_advantage(
    turn_action_value: PerTurn,
    turn_value: PerTurn,
    turn: PerToken,
    mask: PerToken,
    scored: PerRow,
    *,
    inverse_temperature: Annotated[float, Field(ge=0, le=1e6)] = 3.0,
    most: Annotated[float, Field(gt=0, le=1e6)] = 100.0,
) -> PerToken:
    """Every token of turn k gets min(exp(inverse_temperature (Q(s_k, a_k) - V(s_k))), most), for `objective: reinforce`.

    Q and V are a provider's (`iql`, `f_dvl`, `archer`); no reward is read here. The loss is -weight * log pi: supervised learning on stored
    turns, each weighed by itself, where `awr` weighs an episode by its return. 0 imitates all alike; a large value imitates the best turns
    of each state, which comes to acting greedily on Q - V.

    >>> import torch
    >>> Q, V, k = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.5, 0.5]]), torch.tensor([[0, 0, 1]])
    >>> iql_advantage(Q, V, k, k >= 0, torch.ones(1).bool(), inverse_temperature=2.0).tolist()
    [[2.718282, 2.718282, 0.367879]]
    """
    weight = (inverse_temperature * (turn_action_value - turn_value)).exp().clamp(max=most)
    return turns_to_tokens(weight, turn) * (mask & scored[:, None])
