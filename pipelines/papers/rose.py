"""Reinforced Efficient Reasoning via Semantically Diverse Exploration.

https://github.com/ZiqiZhao1/ROSE-rl. Presets: rose. Parts: rose (rollout), rose (advantage).

Rollouts one after another; each may branch off a finished one where its candidates mean the most different things.

A stretch between two branchings is worth what the mean reward changes across it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow, PerToken
from pipelines.contract.method import Rollout
from pipelines.contract.scorer import Passage, TokenStatistics
from pipelines.data.records import Role, Stop, Trajectory
from pipelines.rlvr.ops import group_mean

if TYPE_CHECKING:
    from pipelines.contract.rollout import RolloutContext, RolloutRequest


def spread(logits: Tensor, embeddings: Tensor, top: int, released: bool = False) -> Tensor:
    """H sum_{i != j} p_i p_j (1 - cos_ij) over each row's `top` most probable tokens, [M]; as released -H sum p_i p_j cos_ij.

    Args:
        logits: float32 [M, V].
        embeddings: float [V, hidden].

    >>> table = torch.tensor([[1.0, 0.0], [0.6, 0.8]]); logits = torch.tensor([[0.6, 0.4]]).log()
    >>> round(float(spread(logits, table, 2)), 4), round(float(spread(logits, table, 2, True)), 4)
    (0.1292, -0.1938)
    """
    logp, index = logits.log_softmax(1).topk(min(top, logits.shape[1]), 1)
    p = logp.exp()
    entropy = -(p * logp).sum(1)
    direction = torch.nn.functional.normalize(embeddings[index].float(), dim=2)
    mean = (p[..., None] * direction).sum(1)
    own = p.square().sum(1)
    similar = mean.square().sum(1) - own
    return -entropy * similar if released else entropy * (p.sum(1).square() - own - similar)


@dataclass
class _Branch:
    """A finished answer and where it left another one."""

    parent: _Branch | None
    start: int
    """Its first own token; what stands before is its parent's."""
    tokens: list[int]
    logp: list[float]
    entropy: list[float] | None
    stop: Stop
    cuts: list[int] = field(default_factory=list)
    """Own tokens before which others have branched off."""
    metric: list[float] = field(default_factory=list)
    """Of its own tokens."""


@method(
    paper="https://github.com/ZiqiZhao1/ROSE-rl",
    title="Reinforced Efficient Reasoning via Semantically Diverse Exploration (ROSE)",
    checked="official code (read; generate_sequences_loop_entropy), with a metric of our own by default",
    makes=("node",),
)
class rose(Rollout):
    """With probability `epsilon` a rollout starts at the prompt, else at the token with the largest metric of the finished ones.

    The token there is sampled again. The metric (`spread`) is large where the policy is unsure between tokens that mean different things;
    the released code's is negative between tokens that are alike, and highest where the policy is sure. No position is used twice. Tokens
    that rows share are trained in each, with their node's advantage (`advantage: rose`). With `epsilon` 1 all rollouts are independent.
    """

    asks_policy = True
    reads_network = True

    def __init__(
        self,
        *,
        epsilon: Annotated[float, Field(ge=0, le=1)] = 0.5,
        top: Annotated[int, Field(ge=2, le=1000)] = 20,
        metric: Literal["spread", "released"] = "spread",
    ) -> None:
        self.epsilon, self.top = epsilon, top
        released = metric == "released"
        self.statistics = TokenStatistics(1, lambda logits, ids, table: spread(logits, table, top, released)[:, None])

    def run(self, requests: list[RolloutRequest], context: RolloutContext) -> list[Trajectory]:
        """All rollouts of the problems."""
        branches: list[list[_Branch]] = [[] for _ in requests]
        rounds = max((request.rollouts for request in requests), default=0)
        for number in range(rounds):
            active = [i for i, request in enumerate(requests) if request.rollouts > number]
            positions = [
                _best([] if context.streams.uniform(requests[i].group) < self.epsilon else branches[i]) for i in active
            ]
            drawn = self._extend([requests[i] for i in active], positions, context)
            if number + 1 < rounds and self.epsilon < 1:
                self._measure([requests[i] for i in active], drawn, context)
            for i, branch in zip(active, drawn, strict=True):
                branches[i].append(branch)
        node_ids = count()
        return [
            row
            for request, own in zip(requests, branches, strict=True)
            for row in _trajectories(request, own, context, node_ids)
        ]

    def _extend(
        self, requests: list[RolloutRequest], places: list[tuple[_Branch | None, int]], context: RolloutContext
    ) -> list[_Branch]:
        """A new answer of each request, from its place on; none is longer than the limit."""
        prefixes = [
            [*request.prompt, *request.hint, *(parent.tokens[:at] if parent else [])]
            for request, (parent, at) in zip(requests, places, strict=True)
        ]
        completions = context.extend(prefixes, [request.group for request in requests])
        branches = []
        for (parent, at), completion in zip(places, completions, strict=True):
            room = context.sampling.max_tokens - at
            cut = len(completion.tokens) > room
            entropy = None if completion.entropy is None else completion.entropy[:room]
            if parent is not None:
                parent.cuts.append(at)
                entropy = None if entropy is None else [*(parent.entropy or [])[:at], *entropy]
            branches.append(
                _Branch(
                    parent,
                    at,
                    [*(parent.tokens[:at] if parent else []), *completion.tokens[:room]],
                    [*(parent.logp[:at] if parent else []), *completion.logp[:room]],
                    entropy,
                    Stop.LENGTH if cut else completion.stop,
                )
            )
        return branches

    def _measure(self, requests: list[RolloutRequest], branches: list[_Branch], context: RolloutContext) -> None:
        """Fill the metric of the branches' own tokens."""
        passages = [
            Passage([*request.prompt, *request.hint, *branch.tokens[: branch.start]], branch.tokens[branch.start :])
            for request, branch in zip(requests, branches, strict=True)
        ]
        for branch, values in zip(branches, context.scorer.statistics(passages, self.statistics), strict=True):
            branch.metric = values.squeeze(1).tolist()


def _best(branches: list[_Branch]) -> tuple[_Branch | None, int]:
    """The place with the largest metric, of those before which nothing has branched off; the prompt where there is none."""
    best: tuple[_Branch | None, int] = (None, 0)
    largest = -float("inf")
    for branch in branches:
        for offset, value in enumerate(branch.metric):
            position = branch.start + offset
            if offset > 0 and value > largest and position not in branch.cuts:
                best, largest = (branch, position), value
    return best


def _trajectories(
    request: RolloutRequest, branches: list[_Branch], context: RolloutContext, node_ids: count[int]
) -> list[Trajectory]:
    """The rows of a request; a node is a stretch of one answer's own tokens between two places where others branch off."""
    nodes: dict[tuple[int, int], int] = {}
    prompt = [*request.prompt, *request.hint]
    rows = []
    for branch in branches:
        keys = []
        for position in range(len(branch.tokens)):
            owner = branch
            while owner.parent is not None and position < owner.start:
                owner = owner.parent
            keys.append((id(owner), sum(cut <= position for cut in owner.cuts)))
        for key in keys:
            if key not in nodes:
                nodes[key] = next(node_ids)
        rows.append(
            Trajectory(
                uid=request.problem.uid,
                group=request.group,
                tokens=[*prompt, *branch.tokens],
                role=[int(Role.PROMPT)] * len(request.prompt)
                + [int(Role.HINT)] * len(request.hint)
                + [int(Role.POLICY)] * len(branch.tokens),
                logp_old=[0.0] * len(prompt) + branch.logp,
                entropy_old=None if branch.entropy is None else [0.0] * len(prompt) + branch.entropy,
                max_tokens=context.sampling.max_tokens,
                stop=branch.stop if branch.tokens else Stop.ERROR,
                version=context.version,
                node=[-1] * len(prompt) + [nodes[key] for key in keys],
                text=context.decode([*request.hint, *branch.tokens]),
            )
        )
    return rows


@method(
    paper="https://github.com/ZiqiZhao1/ROSE-rl",
    title="Reinforced Efficient Reasoning via Semantically Diverse Exploration (ROSE)",
    checked="official code (read; values keyed by node, where the code keys them by position)",
    couples="group",
    reduces_to="without branches it is grpo with scale: none",
)
def rose_advantage(
    reward: PerRow,
    correct: PerRow,
    node: PerToken,
    group: PerRow,
    scored: PerRow,
    mask: PerToken,
    *,
    length: Annotated[float, Field(ge=0)] = 0.0,
) -> PerToken:
    """V(node) - V(the node before), V the mean reward of the scored rows through a node, and of the group before the first one.

    Along a row they add up to its reward less the group's mean. With `length` above 0 a correct row that is longer than the shortest
    correct one of its group loses |A| (1 - (left of the shortest / left of its own)^length) after the last node that both share.

    >>> import torch
    >>> n = torch.tensor([[0] * 4 + [1] * 4, [0] * 4 + [2] * 3 + [3], [0] * 4 + [2] * 3 + [4], [5] * 8])
    >>> r = torch.tensor([1.0, 0, 1, 0]); one = torch.ones(4).bool()
    >>> rose_advantage(r, r, n, torch.zeros(4).long(), one, n >= 0)[:, [0, 4, 7]].tolist()
    [[0.166667, 0.333333, 0.333333], [0.166667, -0.166667, -0.5], [0.166667, -0.166667, 0.5], [-0.5, -0.5, -0.5]]
    """
    inside = (node >= 0) & scored[:, None]
    positions = torch.arange(node.shape[1])
    previous = torch.nn.functional.pad(node, (1, 0), value=-1)[:, :-1]
    begins = inside & (node != previous)
    nodes, index = node.unique(return_inverse=True)
    rows, columns = begins.nonzero(as_tuple=True)
    none, passed = torch.zeros(len(nodes), dtype=torch.float64), index[rows, columns]
    total = none.index_add(0, passed, reward.double()[rows])
    count = none.index_add(0, passed, torch.ones_like(reward.double()[rows]))
    value = (total / count.clamp(min=1))[index]
    mean = group_mean(reward, group, scored)[:, None]
    before = torch.where(previous >= 0, torch.nn.functional.pad(value, (1, 0))[:, :-1], mean)
    start = torch.where(begins, positions, 0).cummax(1).values
    advantage = value - before.gather(1, start)
    if length > 0:
        advantage = _shortened(advantage, node, correct > 0, group, inside, length)
    return (advantage * mask).float()


def _shortened(advantage: Tensor, node: Tensor, correct: Tensor, group: Tensor, inside: Tensor, power: float) -> Tensor:
    """Correct rows that are longer than the shortest correct one of their group lose after the last node both have, [B, T]."""
    advantage = advantage.clone()
    size = inside.sum(1).tolist()
    for number in group.unique().tolist():
        rows = [row for row in range(len(node)) if group[row] == number and correct[row]]
        if not rows:
            continue
        shortest = min(rows, key=lambda row: size[row])
        for row in rows:
            differs = node[row] != node[shortest]
            own = max(1, int(differs.sum()))
            factor = 1 - ((own - size[row] + size[shortest]) / own) ** power
            advantage[row] -= advantage[row].abs() * factor * differs
    return advantage
