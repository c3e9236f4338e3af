"""Episodes that branch where the policy becomes unsure."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Annotated

import torch
from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.episode import start, take_turn
from pipelines.contract.method import Rollout

if TYPE_CHECKING:
    from pipelines.contract.rollout import RolloutContext, RolloutRequest
    from pipelines.data.records import Trajectory

PROBE = 20
"""Tokens of a turn whose entropy decides."""


@method(
    paper="2507.19849",
    title="Agentic Reinforced Policy Optimization (entropy-based adaptive rollout)",
    checked="official code (entropy of the whole sampling distribution instead of its ten best tokens)",
    makes=("turn", "turn_reward", "turn_state", "node"),
)
class arpo(Rollout):
    """`start` episodes per problem; after an observation an episode may branch, until there are as many as wanted.

        P(branch) = clip(base + weight * (H_now - H_first), 0, 1)

    with H the mean entropy of a turn's first 20 tokens in nats, divided by log |V|. A branch copies the conversation
    and the world up to the observation. Episodes missing at the end are begun anew from the prompt. Shared turns have
    the same tree node; every row trains them with its own advantage (`credit: arpo_hard` shares it instead).
    """

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
        numbers = count()
        vocabulary = torch.log(torch.tensor(float(len(context.tokenizer)))).item()
        episodes = [start(one) for one in requests for _ in range(min(self.start, one.rollouts))]
        first: dict[int, float] = {}
        while True:
            active = [e for e in episodes if e.stop is None and len(e.states) < self.max_turns]
            if not active:
                missing = [
                    one for one in requests for _ in range(one.rollouts - sum(e.request is one for e in episodes))
                ]
                if not missing:
                    break
                episodes += [start(one) for one in missing]
                continue
            made = context.sampler.extend([e.tokens for e in active], context.sampling, context.generator, entropy=True)
            for episode, completion in zip(active, made, strict=True):
                probe = (completion.entropy or [0.0])[:PROBE]
                spread = sum(probe) / max(1, len(probe)) / vocabulary
                chance = self.base + self.weight * (spread - first.setdefault(id(episode), spread))
                room = episode.request.rollouts - sum(e.request is episode.request for e in episodes)
                if episode.states and room > 0 and float(torch.rand(1, generator=context.generator)) < chance:
                    branch = episode.fork()
                    first[id(branch)] = first[id(episode)]
                    episodes.append(branch)
                take_turn(episode, completion, context, next(numbers))
        order = {id(one): place for place, one in enumerate(requests)}
        episodes.sort(key=lambda e: order[id(e.request)])
        return [e.trajectory(context, self.max_turns, with_nodes=True) for e in episodes]
