"""Completions that branch at fixed depths."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import count
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.method import Rollout
from pipelines.data.records import Role, Stop, Trajectory

if TYPE_CHECKING:
    from pipelines.contract.rollout import Completion, RolloutContext, RolloutRequest


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
    own_group_size=True,
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
            completions = context.sampler.extend(
                [[*path.request.prompt, *path.request.hint, *path.tokens] for path in children],
                context.sampling.model_copy(update={"max_tokens": limit}),
                context.generator,
                entropy=context.entropy,
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
