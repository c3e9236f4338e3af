"""Tree Search for LLM Agent Reinforcement Learning.

arXiv 2509.21240. Presets: tree_grpo. Parts: turn_tree (rollout), tree_grpo (advantage).

Episodes as trees: whole turns are the nodes, and new episodes go on from turns of earlier ones.

Group-relative advantages within a tree of rollouts and across the trees of a problem.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Annotated

import torch
from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow, PerToken
from pipelines.contract.episode import start, take_turns
from pipelines.contract.method import Rollout
from pipelines.contract.played import Episode
from pipelines.rlvr.ops import standardised
from pipelines.rlvr.ops_turns import pair_index

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pipelines.contract.rollout import RolloutContext, RolloutRequest
    from pipelines.data.records import Trajectory


@dataclass
class _Tree:
    """Episodes of a problem that share their first turn."""

    episodes: list[Episode]
    open_turns: list[Episode] = field(default_factory=list)
    """A copy of the episode at the end of every turn after which it continued."""


@method(
    paper="2509.21240",
    title="Tree Search for LLM Agent Reinforcement Learning (Tree-GRPO), rollout",
    checked="reconstructed (M, N and L are the paper's; what happens where no turn can be expanded is ours)",
    makes=("turn", "turn_reward", "turn_state", "turn_belief", "turn_valid", "node"),
    sets_group_size=True,
)
class turn_tree(Rollout):
    """`trees` episodes per problem; then `rounds` times, `expansions` turns of each tree are sampled and continued to the end.

    Turns are sampled uniformly from those after which the episode continued; the new episode has the conversation and the environment of
    that moment, and its own turns can be sampled in the next round. A problem has trees * (1 + rounds * expansions) episodes: with long
    shared prefixes, several times as many as independent episodes with the same number of sampled tokens. A tree whose episodes all ended
    in their first turn gets episodes from the start instead. Shared turns have the same tree node.
    """

    def __init__(
        self,
        *,
        trees: Annotated[int, Field(ge=1)] = 2,
        expansions: Annotated[int, Field(ge=1)] = 2,
        rounds: Annotated[int, Field(ge=0)] = 1,
        max_turns: Annotated[int, Field(ge=1)] = 10,
    ) -> None:
        self.trees, self.expansions, self.rounds, self.max_turns = trees, expansions, rounds, max_turns

    def run(self, requests: list[RolloutRequest], context: RolloutContext) -> list[Trajectory]:
        """All episodes of the problems, those of a tree together."""
        nodes = count()
        forest = [[_Tree([start(request, context)]) for _ in range(self.trees)] for request in requests]
        self._play([(tree, tree.episodes[0]) for trees in forest for tree in trees], context, nodes)
        for _ in range(self.rounds):
            grown: list[tuple[_Tree, Episode]] = []
            for request, trees in zip(requests, forest, strict=True):
                for tree in trees:
                    grown += [(tree, self._expand(tree, request, context)) for _ in range(self.expansions)]
            for tree, episode in grown:
                tree.episodes.append(episode)
            self._play(grown, context, nodes)
        return [
            episode.trajectory(context, self.max_turns, with_nodes=True)
            for trees in forest
            for tree in trees
            for episode in tree.episodes
        ]

    def _expand(self, tree: _Tree, request: RolloutRequest, context: RolloutContext) -> Episode:
        """A new episode that goes on from a turn of the tree, or starts over where there is none."""
        if not tree.open_turns:
            return start(request, context)
        drawn = int(torch.randint(len(tree.open_turns), (), generator=context.streams.generator(request.group)))
        return tree.open_turns[drawn].fork()

    def _play(self, playing: list[tuple[_Tree, Episode]], context: RolloutContext, nodes: Iterator[int]) -> None:
        """Play episodes side by side to their ends, and note the turns that can be expanded."""
        while active := [(tree, e) for tree, e in playing if e.stop is None and len(e.states) < self.max_turns]:
            completions = context.extend([e.tokens for _, e in active], [e.request.group for _, e in active])
            take_turns([e for _, e in active], completions, context, [next(nodes) for _ in active])
            for tree, episode in active:
                if episode.stop is None and len(episode.states) < self.max_turns:
                    tree.open_turns.append(episode.fork())


@method(
    paper="2509.21240",
    title="Tree Search for LLM Agent Reinforcement Learning (Tree-GRPO)",
    checked="reconstructed (the sum of the two terms is the paper's; ddof and eps are GRPO's)",
    couples="group",
    reduces_to="with every row a tree of its own it is grpo",
)
def tree_grpo(reward: PerRow, group: PerRow, scored: PerRow, mask: PerToken, node: PerToken) -> PerRow:
    """A = z-score of the reward among the rows of its tree + z-score among all rows of its group.

    Rows of a tree share the node of their first trained token. The first term compares continuations of the same turns, so it shows which
    branch was better (a step-level preference without a process reward); a tree of one row, or without differences, adds 0. The second
    keeps trees comparable.

    >>> import torch
    >>> node = torch.tensor([[0, 1], [0, 2], [3, 4], [3, 5]]); m = torch.ones(4, 2).bool(); g = torch.zeros(4).long()
    >>> tree_grpo(torch.tensor([1.0, 0.0, 1.0, 1.0]), g, torch.ones(4).bool(), m, node).tolist()
    [1.2071, -2.2071, 0.5, 0.5]
    """
    first = mask.long().argmax(1, keepdim=True)
    tree = pair_index(group, node.gather(1, first).squeeze(1))
    return (standardised(reward, tree, scored) + standardised(reward, group, scored)).float()
