"""Log-likelihoods of continuations, with what requests share computed once.

The answers of one question share the question, and with fixed few-shot examples all questions share those. lm-eval's HFLM
computes every request whole, and the logits of every position.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from pipelines.engine.layout import Layout, best_layouts, with_prefix
from pipelines.engine.policy import Policy

SHARED = 32
"""Tokens that all requests of a group must share before they are computed ahead of the rest."""
KEYS_PER_TOKEN = 4
"""Keys of the shared tokens, which every laid-out row holds, per token of a pass."""
GROUP = 1024
"""Requests that are laid out together."""


@torch.no_grad()
def log_likelihoods(
    policy: Policy, requests: Sequence[tuple[Sequence[int], int]], budget: int
) -> Iterator[tuple[int, float, bool]]:
    """The log-likelihood of each continuation.

    Args:
        policy: with temperature 1 and no truncation.
        requests: token ids, and how many of the last of them are the continuation; at least one token stands before it.
        budget: tokens of a forward pass, padding included.

    Returns:
        (index of the request, sum of the log-probabilities in nats, whether each token is the most probable one), as they come.
    """
    for members in groups(requests):
        rows, starts = [requests[i][0] for i in members], [len(requests[i][0]) - requests[i][1] for i in members]
        shared = min(_common(rows[0], rows[-1]), min(starts) - 1)
        if not policy.takes_prefixes or len(rows) == 1 or shared < SHARED:
            shared = 0
        tokens, mask = _batch([row[shared:] for row in rows], [start - shared for start in starts])
        for layout in _layouts(policy, tokens, mask, torch.tensor(rows[0][:shared]), budget):
            results = policy.of_logits(layout, tokens.flatten()[layout.target], _score).cpu().double()
            row = layout.target // tokens.shape[1]
            for i in row.unique().tolist():
                log_probs, greedy = results[row == i].unbind(1)
                yield members[i], float(log_probs.sum()), bool(greedy.all())


def groups(requests: Sequence[tuple[Sequence[int], int]]) -> list[list[int]]:
    """Indices of the requests of `log_likelihoods` that are computed together; a group's numbers do not depend on the others, and asked for
    alone it is one group again."""
    order = sorted(range(len(requests)), key=lambda i: list(requests[i][0]))
    return [[order[place] for place in group] for group in _groups([requests[i][0] for i in order])]


def _layouts(policy: Policy, tokens: Tensor, mask: Tensor, shared: Tensor, budget: int) -> list[Layout]:
    every, length = torch.arange(len(tokens)), len(shared)
    if not length:
        return best_layouts(
            tokens, mask, every, budget, allow_trees=policy.takes_masks, allow_prefixes=policy.takes_prefixes
        )
    widest = tokens.shape[1]
    room = min(budget, max(widest, KEYS_PER_TOKEN * budget * widest // length))
    return [with_prefix(shared, layout) for layout in best_layouts(tokens, mask, every, room, allow_trees=True)]


def _score(logits: Tensor, tokens: Tensor) -> Tensor:
    """Log-probability, and 1 where the token is the most probable one."""
    chosen = logits.gather(1, tokens[:, None])[:, 0]
    return torch.stack([chosen - logits.logsumexp(1), (logits.argmax(1) == tokens).float()], 1)


def _groups(rows: Sequence[Sequence[int]]) -> Iterator[range]:
    """Neighbours among sorted rows: one joins unless it would cost the group more than half of what its rows have in common."""
    start, shared = 0, 0
    for i in range(1, len(rows)):
        common = _common(rows[start], rows[i])
        first = i == start + 1
        if i - start < GROUP and (first or shared < SHARED or 2 * common >= shared):
            shared = common if first else min(shared, common)
        else:
            yield range(start, i)
            start, shared = i, 0
    if rows:
        yield range(start, len(rows))


def _common(first: Sequence[int], second: Sequence[int]) -> int:
    """Leading tokens that two rows have in common."""
    size = min(len(first), len(second))
    differ = (np.asarray(first[:size]) != np.asarray(second[:size])).nonzero()[0]
    return int(differ[0]) if len(differ) else size


def _batch(rows: Sequence[Sequence[int]], starts: Sequence[int]) -> tuple[Tensor, Tensor]:
    tokens = torch.zeros(len(rows), max(map(len, rows)), dtype=torch.int64)
    for i, row in enumerate(rows):
        tokens[i, : len(row)] = torch.tensor(row)
    place = torch.arange(tokens.shape[1])
    ends = torch.tensor([len(row) for row in rows])
    return tokens, (place >= torch.tensor(starts)[:, None]) & (place < ends[:, None])
