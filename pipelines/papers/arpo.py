"""Agentic Reinforced Policy Optimization.

arXiv 2507.19849. Presets: arpo. Parts: arpo (rollout), arpo_hard (credit).

Episodes that branch where the policy becomes unsure.

A token that several rollouts share gets the mean of their advantages.
"""

from __future__ import annotations

import math
from itertools import count
from typing import TYPE_CHECKING, Annotated

import torch
from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerToken
from pipelines.contract.episode import start, take_turns
from pipelines.contract.method import Rollout
from pipelines.contract.played import Episode

if TYPE_CHECKING:
    from pipelines.contract.rollout import RolloutContext, RolloutRequest
    from pipelines.data.records import Trajectory


@method(
    paper="2507.19849",
    title="Agentic Reinforced Policy Optimization (entropy-based adaptive rollout)",
    checked="official code, 5 cases (entropy of the whole sampling distribution instead of its ten best tokens)",
    makes=("turn", "turn_reward", "turn_state", "turn_belief", "turn_valid", "node"),
    reads=("entropy_old",),
)
class arpo(Rollout):
    """`start` episodes per problem; after each turn an episode may branch, until the problem has its `rollouts`.

        P(branch) = clip(base + weight * (H_now - H_first), 0, 1)

    with H the summed entropy of a turn's first 20 tokens in nats, divided by log |V|, and H_first that of the episode's own first turn. A
    branch copies the conversation and the environment including the turn and its observation; its next turn counts as its first, and it may
    branch too. A problem whose episodes have all finished gets one new episode a round until it has all of its rollouts.

    Example: 4 rollouts wanted, `start` 2. After the first turns H_now = H_first, so each episode branches with probability `base`; say the
    first does: 3 episodes. In the next round that branch sets its own H_first; episode 0, whose H rose from 1.2 to 1.5, branches with 0.5 +
    0.2 * 0.3 = 0.56. With 4 episodes branching stops, and all continue to their ends.

    Shared turns have the same tree node; every row trains them with its own advantage (`credit: arpo_hard` shares it instead).
    """

    PROBE = 20
    """Tokens of a turn whose entropies are summed."""

    def __init__(
        self,
        *,
        start: Annotated[int, Field(ge=1)] = 4,
        base: Annotated[float, Field(ge=0, le=1)] = 0.5,
        weight: float = 0.2,
        max_turns: Annotated[int, Field(ge=1)] = 10,
    ) -> None:
        self.start, self.base, self.weight, self.max_turns = start, base, weight, max_turns

    def run(self, requests: list[RolloutRequest], context: RolloutContext) -> list[Trajectory]:
        """All rollouts of the problems; always `request.rollouts` of each."""
        node_ids = count()
        vocabulary = len(context.tokenizer)
        episodes = {
            id(request): [start(request, context) for _ in range(min(self.start, request.rollouts))]
            for request in requests
        }
        first_entropies: dict[int, float] = {}
        while active := [e for request in requests for e in episodes[id(request)] if self._goes_on(e)]:
            completions = context.extend([e.tokens for e in active], [e.request.group for e in active], entropy=True)
            turn_entropies: dict[int, float] = {}
            for episode, completion in zip(active, completions, strict=True):
                turn_entropies[id(episode)] = self.turn_entropy(completion.entropy or [], vocabulary)
                first_entropies.setdefault(id(episode), turn_entropies[id(episode)])
            take_turns(active, completions, context, [next(node_ids) for _ in active])
            for request in requests:
                self._branch(request, episodes[id(request)], turn_entropies, first_entropies, context)
        return [
            e.trajectory(context, self.max_turns, with_nodes=True)
            for request in requests
            for e in episodes[id(request)]
        ]

    def _branch(
        self,
        request: RolloutRequest,
        episodes: list[Episode],
        turn_entropies: dict[int, float],
        first_entropies: dict[int, float],
        context: RolloutContext,
    ) -> None:
        """Fork unfinished episodes of a problem by chance, in place, or start one more where none is left to fork.

        Args:
            turn_entropies: id of an episode → H of its last turn.
            first_entropies: id of an episode → H of its first turn.
        """
        unfinished = [e for e in episodes if self._goes_on(e)]
        for episode in unfinished:
            probability = self.chance(turn_entropies[id(episode)], first_entropies[id(episode)])
            if len(episodes) < request.rollouts and context.streams.uniform(request.group) < probability:
                episodes.append(episode.fork())
        if not unfinished and len(episodes) < request.rollouts:
            episodes.append(start(request, context))

    def _goes_on(self, episode: Episode) -> bool:
        return episode.stop is None and len(episode.states) < self.max_turns

    def turn_entropy(self, entropies: list[float], vocabulary: int) -> float:
        """H of a turn from the entropies of its tokens in nats.

        >>> round(arpo().turn_entropy([1.0] * 30, 1000), 6)
        2.895297
        """
        return sum(entropies[: self.PROBE]) / math.log(vocabulary)

    def chance(self, now: float, first: float) -> float:
        """Probability of a branch.

        >>> round(arpo().chance(1.5, 1.2), 6), arpo(weight=4.0).chance(2.0, 1.0)
        (0.56, 1.0)
        """
        return min(1.0, max(0.0, self.base + self.weight * (now - first)))


@method(
    paper="2507.19849",
    title="Agentic Reinforced Policy Optimization, hard advantage attribution",
    checked="reconstructed (from the paper's description; the official default is the soft form, which is no credit part)",
    couples="group",
)
def arpo_hard(advantage: PerToken, mask: PerToken, node: PerToken) -> PerToken:
    """Mean advantage over the rows that have the token's tree node at this position; unshared tokens keep their own.

    >>> import torch
    >>> A = torch.tensor([[0.9, 0.9], [-0.9, -0.9]]); n = torch.tensor([[0, 1], [0, 2]])
    >>> arpo_hard(A, torch.ones(2, 2).bool(), n).tolist()
    [[0.0, 0.9], [0.0, -0.9]]
    """
    in_node = mask & (node >= 0)
    position = torch.arange(mask.shape[1]).expand_as(node)
    token_id = (node * mask.shape[1] + position).flatten().unique(return_inverse=True)[1]
    zeros = torch.zeros(int(token_id.max()) + 1, dtype=torch.float64)
    total = zeros.index_add(0, token_id, (advantage.double() * in_node).flatten())
    count = zeros.index_add(0, token_id, in_node.double().flatten())
    mean = (total / count.clamp(min=1))[token_id].view_as(advantage).float()
    return torch.where(in_node, mean, advantage)
