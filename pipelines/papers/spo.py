"""Segment Policy Optimization.

arXiv 2505.23564. Presets: spo_chain, spo_tree, turning_point. Parts: chain (rollout), tree (rollout), spo_chain (advantage), spo_tree
(advantage).

Completions with Monte-Carlo values: new continuations of their prefixes are sampled and scored.

Completions that branch at fixed depths.

Every segment gets the rise in Monte-Carlo value across it.

Every node of a tree of segments against its parent.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import count
from typing import TYPE_CHECKING, Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow, PerToken
from pipelines.contract.method import Rollout
from pipelines.data.records import Role, Stop, Trajectory
from pipelines.rlvr.common.answers import answers, scores_of
from pipelines.rlvr.ops import SAME, group_index, next_index

if TYPE_CHECKING:
    from pipelines.contract.rollout import Completion, RolloutContext, RolloutRequest


@method(
    paper="2505.23564",
    title="Segment Policy Optimization (chain sampling)",
    checked="official code",
    makes=("mc_value",),
)
class chain(Rollout):
    """Before every `interval`-th unsure token, `probes` new continuations; their mean score is the state's Monte-Carlo value.

    A token is unsure where the policy chose it with a probability below `certain`. Continuations may use the rest of the row's token limit;
    the verifier scores them, and they are not trained on.
    """

    def __init__(
        self,
        *,
        interval: Annotated[int, Field(ge=1)] = 5,
        probes: Annotated[int, Field(ge=1)] = 9,
        certain: Annotated[float, Field(gt=0, le=1)] = 0.9,
    ) -> None:
        self.interval, self.probes, self.certain = interval, probes, certain

    def run(self, requests: list[RolloutRequest], context: RolloutContext) -> list[Trajectory]:
        """All rollouts of the problems, with `mc_value` filled."""
        repeated = [request for request in requests for _ in range(request.rollouts)]
        rows = answers(requests, context)
        states: list[tuple[int, int]] = []
        for row_index, row in enumerate(rows):
            n_context = len(repeated[row_index].prompt) + len(repeated[row_index].hint)
            row.mc_value = [math.nan] * len(row.tokens)
            states += [
                (row_index, n_context + cut) for cut in cuts(row.logp_old[n_context:], self.certain, self.interval)
            ]
        prefixes = [rows[row_index].tokens[:cut] for row_index, cut in states for _ in range(self.probes)]
        groups = [rows[row_index].group for row_index, _ in states for _ in range(self.probes)]
        completions = context.extend(prefixes, groups, entropy=False)
        for state_index, (row_index, cut) in enumerate(states):
            request, row = repeated[row_index], rows[row_index]
            n_prompt = len(request.prompt)
            tokens_left = context.sampling.max_tokens - (cut - n_prompt - len(request.hint))
            continuations = completions[state_index * self.probes : (state_index + 1) * self.probes]
            texts = [
                context.decode([*row.tokens[n_prompt:cut], *continuation.tokens[:tokens_left]])
                for continuation in continuations
            ]
            scores = [score for score in scores_of(request, texts) if score is not None]
            assert row.mc_value is not None
            row.mc_value[cut] = sum(scores) / len(scores) if scores else 0.0
        return rows


def cuts(logp: list[float], certain: float, interval: int) -> list[int]:
    """Positions in a completion before whose token the state is valued: every `interval`-th unsure one.

    >>> p = [0.95, 0.5, 0.99, 0.6, 0.3, 0.8, 0.97]
    >>> cuts([math.log(x) for x in p], 0.9, 2), cuts([math.log(x) for x in (0.7, 0.95, 0.6, 0.8)], 0.9, 2)
    ([1, 4], [0, 3])
    """
    return [at for at, value in enumerate(logp) if value < math.log(certain)][::interval]


@dataclass
class _Path:
    """Segments from the root to a node, each with its node's index."""

    request: RolloutRequest
    segments: list[tuple[int, Completion]]

    @property
    def tokens(self) -> list[int]:
        return [t for _, completion in self.segments for t in completion.tokens]


@method(
    paper="2505.23564",
    title="Segment Policy Optimization (tree sampling)",
    checked="official code",
    makes=("node",),
    sets_group_size=True,
)
class tree(Rollout):
    """A tree of segments per problem: `factors[d]` children at depth d, `segment` tokens each, the last to the limit.

    A segment that ends its answer is a leaf. Every leaf is a row; a token that several rows share is trained in the first
    of them only, so each edge of the tree counts once. `group_size` is not read: a problem has up to
    the product of the factors rows.
    """

    def __init__(
        self,
        *,
        factors: Annotated[list[Annotated[int, Field(ge=1)]], Field(min_length=1)] = [4, 2],  # noqa: B006
        segment: Annotated[int, Field(ge=1)] = 30,
    ) -> None:
        self.factors, self.segment = list(factors), segment

    def run(self, requests: list[RolloutRequest], context: RolloutContext) -> list[Trajectory]:
        """All rollouts of the problems."""
        node_ids = count()
        leaves: list[_Path] = []
        growing = [_Path(request, []) for request in requests]
        for depth, factor in enumerate(self.factors):
            last = depth + 1 == len(self.factors)
            children = [path for path in growing for _ in range(factor)]
            tokens_left = context.sampling.max_tokens - self.segment * depth
            if tokens_left <= 0 or not children:
                leaves += growing
                growing = []
                break
            limit = tokens_left if last else min(self.segment, tokens_left)
            completions = context.extend(
                [[*path.request.prompt, *path.request.hint, *path.tokens] for path in children],
                [path.request.group for path in children],
                sampling=context.sampling.model_copy(update={"max_tokens": limit}),
            )
            grown = [
                replace(path, segments=[*path.segments, (next(node_ids), completion)])
                for path, completion in zip(children, completions, strict=True)
            ]
            leaves += [path for path in grown if last or _finished(path)]
            growing = [path for path in grown if not last and not _finished(path)]
        leaves += growing
        trained_nodes: set[int] = set()
        return [
            _trajectory(path, context, trained_nodes) for path in sorted(leaves, key=lambda path: path.request.group)
        ]


def _finished(path: _Path) -> bool:
    return path.segments[-1][1].stop in (Stop.END, Stop.ERROR)


def _trajectory(path: _Path, context: RolloutContext, trained_nodes: set[int]) -> Trajectory:
    """The row of a leaf; tokens of nodes that an earlier row has are forced."""
    prompt = [*path.request.prompt, *path.request.hint]
    row = Trajectory(
        uid=path.request.problem.uid,
        group=path.request.group,
        tokens=[*prompt, *path.tokens],
        role=[int(Role.PROMPT)] * len(path.request.prompt) + [int(Role.HINT)] * len(path.request.hint),
        logp_old=[0.0] * len(prompt),
        entropy_old=[0.0] * len(prompt) if context.entropy else None,
        max_tokens=context.sampling.max_tokens,
        stop=path.segments[-1][1].stop if path.tokens else Stop.ERROR,
        version=context.version,
        node=[-1] * len(prompt),
        text=context.decode([*path.request.hint, *path.tokens]),
    )
    assert row.node is not None
    for node, completion in path.segments:
        role = Role.FORCED if node in trained_nodes else Role.POLICY
        row.role += [int(role)] * len(completion.tokens)
        row.logp_old += completion.logp
        row.node += [node] * len(completion.tokens)
        if row.entropy_old is not None:
            row.entropy_old += completion.entropy or []
        trained_nodes.add(node)
    return row


@method(
    paper="2505.23564",
    title="Segment Policy Optimization (chain)",
    checked="official code, 5 cases",
    couples="row",
    group_of_one="compares with continuations of its own prefix, not with a group",
    zero_variance_groups="learns",
)
def spo_chain(
    reward: PerRow,
    mc_value: PerToken,
    mask: PerToken,
    scored: PerRow,
    logp_old: PerToken,
    token_penalty: PerToken,
    *,
    certain: Annotated[float, Field(gt=0, le=1)] = 0.9,
) -> tuple[PerToken, PerToken]:
    """A segment from one valued token to the next gets V(next) - V(its start); the last one reward - V(its start).

    V is the Monte-Carlo value, the mean score of new continuations (`rollout: chain`), less what a divergence in the reward charged the
    tokens before it: a segment answers for its own charges. Tokens before the first value get 0. Tokens that the
    policy chose with a probability of `certain` or more are not decisions: they get 0 and leave the loss. `credit: whiten` whitens what is
    left, as the released trainer does.

    >>> import torch
    >>> p = torch.tensor([[0.95, 0.5, 0.99, 0.6, 0.3, 0.8, 0.97]]); V = torch.full((1, 7), torch.nan)
    >>> V[0, 1], V[0, 4] = 4 / 9, 6 / 9
    >>> A, share = spo_chain(torch.ones(1), V, p > 0, torch.ones(1).bool(), p.log(), p * 0)
    >>> [round(v, 6) for v in A[0].tolist()], share.tolist()
    ([0.0, 0.222222, 0.0, 0.222222, 0.333333, 0.333333, 0.0], [[0.0, 1.0, 0.0, 1.0, 1.0, 1.0, 0.0]])
    """
    width = mask.shape[1]
    position = torch.arange(width).expand_as(mask)
    valued = mask & ~mc_value.isnan()
    charged = token_penalty.double() * mask
    value = mc_value.nan_to_num(0.0).double() - (charged.cumsum(1) - charged)
    start = torch.where(valued, position, -1).cummax(1).values
    next_valued = next_index(valued)
    end_value = torch.where(
        next_valued < width, value.gather(1, next_valued.clamp(max=width - 1)), reward.double()[:, None]
    )
    value_gain = (end_value - value.gather(1, start.clamp(min=0))) * (start >= 0)
    uncertain = logp_old < torch.tensor(certain).log() if certain < 1 else torch.ones_like(mask)
    kept = mask & scored[:, None] & uncertain
    return (value_gain * kept).to(reward.dtype), kept.to(reward.dtype)


@method(
    paper="2505.23564",
    title="Segment Policy Optimization (tree)",
    checked="official code, 8 cases",
    couples="group",
    reduces_to="a tree of one level with certain: 1 is grpo, without or with deviation",
)
def spo_tree(
    reward: PerRow,
    group: PerRow,
    scored: PerRow,
    mask: PerToken,
    node: PerToken,
    logp_old: PerToken,
    *,
    scale: Literal["none", "std"] = "none",
    certain: Annotated[float, Field(gt=0, le=1)] = 0.9,
    eps: Annotated[float, Field(gt=0)] = 1e-8,
) -> tuple[PerToken, PerToken]:
    """V(leaf) is the row's reward, V(node) the mean over its children; a segment's tokens get V(node) - V(parent).

    `scale: std` divides by the population deviation of the siblings. Tokens that the policy chose with a probability of `certain` or more
    are not decisions: they get 0 and leave the loss, and so do segments whose value is their parent's. Rows that share a segment hold
    copies of it, which count as one. `credit: whiten` whitens what is left, as the released trainer does.

    >>> import torch
    >>> n = torch.tensor([[0, 3], [0, 4], [1, 5], [1, 6], [2, 7], [2, 8]]); m = torch.ones(6, 2).bool()
    >>> r, g, old = torch.tensor([1.0, 0, 1, 1, 0, 0]), torch.zeros(6).long(), torch.full((6, 2), -1.0)
    >>> A, share = spo_tree(r, g, m[:, 0], m, n, old)
    >>> A[:, 0].tolist(), A[:2, 1].tolist(), share[1].tolist(), share[2].tolist()
    ([0.0, 0.0, 0.5, 0.5, -0.5, -0.5], [0.5, -0.5], [0.0, 1.0], [0.5, 0.0])
    """
    path, depth = _paths(node)
    nodes, path = path.unique(return_inverse=True)
    value, parent_value, deviation, known = _node_values(path, depth, len(nodes), reward, group, scored)
    gain = (value - parent_value) * known
    if scale == "std":
        gain = gain / (deviation + eps)
    token_node = torch.searchsorted(nodes, node)
    uncertain = logp_old < torch.tensor(certain).log() if certain < 1 else torch.ones_like(mask)
    in_tree = (node >= 0) & mask & scored[:, None]
    copies = _copies(node, in_tree)
    kept = in_tree & uncertain & ((value - parent_value).abs() > SAME)[token_node]
    return (gain[token_node] * kept).to(reward.dtype), (kept / copies.clamp(min=1)).to(reward.dtype)


def _node_values(
    path: Tensor, depth: Tensor, n_nodes: int, reward: Tensor, group: Tensor, scored: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Values from the leaves up: V of each node, V of its parent, the deviation among its siblings, whether it has a value.

    Example: four rows, two below node 0 (leaves 2, 3 with rewards 1 and 0), two below node 1 (leaves 4, 5, both 0). The
    deepest level first: V(0) = 0.5 with a deviation of 0.5 among its children, V(1) = 0. Then the root, which is the group:
    0.25 with 0.25.

    >>> path = torch.tensor([[0, 2], [0, 3], [1, 4], [1, 5]]); row = torch.ones(4)
    >>> V = _node_values(path, row.long() * 2, 6, torch.tensor([1.0, 0, 0, 0]), row.long(), row.bool())
    >>> V[0].tolist(), V[1].tolist(), V[2].tolist()
    ([0.5, 0.0, 1.0, 0.0, 0.0, 0.0], [0.25, 0.25, 0.5, 0.5, 0.0, 0.0], [0.25, 0.25, 0.5, 0.5, 0.0, 0.0])

    Args:
        path: int64 [B, D], indices from 0 of each row's nodes, as `_paths` orders them.
        depth: int64 [B], nodes of each row.

    Returns:
        three float64 [n_nodes] and a bool [n_nodes]; a node that only unscored rows have has no value.
    """
    value, parent_value, deviation = torch.zeros(3, n_nodes, dtype=torch.float64).unbind()
    known = torch.zeros(n_nodes, dtype=torch.bool)
    valued = scored & (depth > 0)
    leaf = path.gather(1, (depth - 1).clamp(min=0)[:, None]).squeeze(1)[valued]
    value[leaf], known[leaf] = reward.double()[valued], True
    root, n_roots = group_index(group)  # parents are numbered roots first, then nodes
    for level in range(int(depth.max()) - 1, -1, -1):
        rows = depth > level
        parent_of_rows = path[rows, level - 1] + n_roots if level > 0 else root[rows]
        edges = torch.stack([path[rows, level], parent_of_rows]).unique(dim=1)
        child, parent = edges[:, known[edges[0]]]
        mean, std = _over_children(value[child], parent, n_roots + n_nodes)
        parent_value[child], deviation[child] = mean[parent], std[parent]
        if level > 0:
            inner = parent.unique()
            value[inner - n_roots], known[inner - n_roots] = mean[inner], True
    return value, parent_value, deviation, known


def _over_children(values: Tensor, parent: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Mean and population deviation of the children's values by parent, float64 [size] each; 0 for a parent without children."""

    def total(x: Tensor) -> Tensor:
        return torch.zeros(size, dtype=torch.float64).index_add(0, parent, x)

    count = total(torch.ones_like(values)).clamp(min=1)
    mean = total(values) / count
    return mean, (total((values - mean[parent]) ** 2) / count).sqrt()


def _copies(node: Tensor, in_tree: Tensor) -> Tensor:
    """How many rows hold the token of the same node at the same position, float64 [B, T]."""
    token_id = (node * node.shape[1] + torch.arange(node.shape[1])).flatten().unique(return_inverse=True)[1]
    copies = torch.zeros(int(token_id.max()) + 1, dtype=torch.float64).index_add(
        0, token_id, in_tree.double().flatten()
    )
    return copies[token_id].view_as(node)


def _paths(node: Tensor) -> tuple[Tensor, Tensor]:
    """Nodes of each row in order, int64 [B, D] (the last repeated), and how many there are, int64 [B].

    >>> _paths(torch.tensor([[-1, 4, 4, 7], [-1, 4, 4, 4]]))
    (tensor([[4, 7],
            [4, 4]]), tensor([2, 1]))
    """
    previous = torch.nn.functional.pad(node, (1, 0), value=-1)[:, :-1]
    starts = (node >= 0) & (node != previous)
    depth = starts.sum(1)
    width = max(1, int(depth.max()))
    path = torch.zeros(len(node), width, dtype=torch.int64)
    row, column = starts.nonzero(as_tuple=True)
    path[row, starts.cumsum(1)[row, column] - 1] = node[row, column]
    last = path.gather(1, (depth - 1).clamp(min=0)[:, None])
    return torch.where(torch.arange(width) < depth[:, None], path, last), depth
