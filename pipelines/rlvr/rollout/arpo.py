"""Episodes that branch where the policy becomes unsure."""

from __future__ import annotations

import math
from itertools import count
from typing import TYPE_CHECKING, Annotated

import torch
from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.episode import Episode, start, take_turn
from pipelines.contract.method import Rollout

if TYPE_CHECKING:
    from pipelines.contract.rollout import RolloutContext, RolloutRequest
    from pipelines.data.records import Trajectory


@method(
    paper="2507.19849",
    title="Agentic Reinforced Policy Optimization (entropy-based adaptive rollout)",
    checked="official code, 5 cases (entropy of the whole sampling distribution instead of its ten best tokens)",
    makes=("turn", "turn_reward", "turn_state", "node"),
    reads=("entropy_old",),
)
class arpo(Rollout):
    """`start` episodes per problem; after each turn an episode may branch, until there are as many as wanted.

        P(branch) = clip(base + weight * (H_now - H_first), 0, 1)

    with H the summed entropy of a turn's first 20 tokens in nats, divided by log |V|, and H_first that of the episode's own first
    turn. A branch copies the conversation and the world with the turn and its observation; its next turn is its own first, and
    it may branch too. A problem none of whose episodes goes on gets one new episode a round, until it has all. Shared turns have
    the same tree node; every row trains them with its own advantage (`credit: arpo_hard` shares it instead).
    """

    PROBE = 20
    """Tokens of a turn whose entropy decides."""

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
        """All rollouts of the problems; always as many of each as wanted."""
        nodes = count()
        vocabulary = len(context.tokenizer)
        episodes = {id(one): [start(one) for _ in range(min(self.start, one.rollouts))] for one in requests}
        first: dict[int, float] = {}
        while active := [e for one in requests for e in episodes[id(one)] if self._goes_on(e)]:
            completions = context.sampler.extend(
                [e.tokens for e in active], context.sampling, context.generator, entropy=True
            )
            now: dict[int, float] = {}
            for episode, completion in zip(active, completions, strict=True):
                now[id(episode)] = self.turn_entropy(completion.entropy or [], vocabulary)
                first.setdefault(id(episode), now[id(episode)])
                take_turn(episode, completion, context, next(nodes))
            for one in requests:
                rows = episodes[id(one)]
                going = [e for e in rows if self._goes_on(e)]
                for episode in going[: None if len(rows) < one.rollouts else 0]:
                    chance = self.chance(now[id(episode)], first[id(episode)])
                    if len(rows) < one.rollouts and float(torch.rand(1, generator=context.generator)) < chance:
                        rows.append(episode.fork())
                if not going and len(rows) < one.rollouts:
                    rows.append(start(one))
        return [e.trajectory(context, self.max_turns, with_nodes=True) for one in requests for e in episodes[id(one)]]

    def _goes_on(self, episode: Episode) -> bool:
        return episode.stop is None and len(episode.states) < self.max_turns

    def turn_entropy(self, entropies: list[float], vocabulary: int) -> float:
        """H of a turn from the entropies of its tokens in nats.

        >>> round(arpo().turn_entropy([1.0] * 30, 1000), 6)
        2.895297
        """
        return sum(entropies[: self.PROBE]) / math.log(vocabulary)

    def chance(self, now: float, first: float) -> float:
        """How likely a branch is.

        >>> round(arpo().chance(1.5, 1.2), 6), arpo(weight=4.0).chance(2.0, 1.0)
        (0.56, 1.0)
        """
        return min(1.0, max(0.0, self.base + self.weight * (now - first)))
