"""Rows that start alike, laid out as a tree so that every common prefix is computed once.

Rows are a trie of tokens. A token sees its ancestors and itself, never another branch,
and its position is its depth; so every log-probability and gradient is that of the separate rows, up to
float rounding. With short answers to long prompts, or samples that agree on how to begin, most of the
forward and backward work disappears. The last token of a row is only predicted, never read: it has no place
in the layout.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

WIDTH = 512
"""Trees are not made wider than this (or one row): attention grows with the square of the width."""
WORTH = 0.85
"""Trees are used where they have at most this share of the plain layout's tokens."""
NARROW = 192
"""Different prompts with the same first half share a tree up to this width."""
CLEAR = 0.5
"""Trees with at most this share of the plain layout's tokens are taken without looking further."""
BETTER = 0.9
"""Rows behind common beginnings are preferred to trees where they have at most this share of their tokens."""
FULL, SMALL = 0.8, 512
"""A row less full than this share of the first waits for the next pass, once a pass has this many tokens."""


@dataclass
class Prefix:
    """Beginnings that several laid-out rows continue, read once each in a pass of their own."""

    ids: Tensor
    """int64 [P, L], padded on the right."""
    row: Tensor
    """int64 [R], which one each laid-out row continues."""


@dataclass
class Layout:
    """Some rows of a [B, T] batch, laid out for one forward pass. Letters: R laid-out rows, W their width, M scored tokens."""

    ids: Tensor
    """int64 [R, W]."""
    positions: Tensor
    """int64 [R, W]."""
    attention: Tensor | None
    """bool [R, 1, W, W], or [R, 1, W, L + W] behind a prefix; None for plain causal rows."""
    source: Tensor
    """int64 [M], flat index into R * W of the hidden state that predicts the token."""
    target: Tensor
    """int64 [M], flat index into B * T of the token."""
    used: int
    """Tokens of the forward pass that are not padding."""
    repeat: bool = False
    """Run for the sake of other processes only: its numbers count nothing."""
    prefix: Prefix | None = None

    @property
    def size(self) -> int:
        """Tokens of the forward pass, padding included."""
        return self.ids.numel() + (0 if self.prefix is None else self.prefix.ids.numel())


def ends(mask: Tensor) -> Tensor:
    """int64 [B], one past each row's last True."""
    return (mask.long() * torch.arange(1, mask.shape[1] + 1)).amax(1)


def plain(tokens: Tensor, mask: Tensor, rows: Tensor, budget: int) -> Iterator[Layout]:
    """One laid-out row per row, padded on the right, longest first, `budget` tokens at a time."""
    read = ends(mask) - 1
    order = rows[read[rows].argsort(descending=True, stable=True)]
    while len(order):
        width = max(1, int(read[order[0]]))
        count = min(len(order), max(1, budget // width))
        part, order = order[:count], order[count:]
        where = mask[part, 1 : width + 1].nonzero()
        yield Layout(
            ids=tokens[part, :width],
            positions=torch.arange(width).expand(len(part), width),
            attention=None,
            source=where[:, 0] * width + where[:, 1],
            target=part[where[:, 0]] * tokens.shape[1] + where[:, 1] + 1,
            used=int(read[part].sum()),
        )


@dataclass
class _Tree:
    """Rows in the order of their tokens; each adds the nodes by which it leaves the one before."""

    rows: list[int]
    known: list[int]
    """Per row: leading tokens that the row before has too."""
    width: int


def shared(tokens: Tensor, mask: Tensor, rows: Tensor, budget: int) -> Iterator[Layout]:
    """Rows as trees, about `budget` tokens at a time. Every row must have a True in its mask."""
    yield from _shared(_trees(tokens, mask, rows, budget), tokens, mask, budget)


def behind(tokens: Tensor, mask: Tensor, rows: Tensor, budget: int) -> Iterator[Layout]:
    """Rows behind what they have in common before their first scored token, about `budget` tokens at a time.

    For long answers: a tree of them would be wide, and attention in it grows with the square of the width. The
    last token of a beginning goes with the rows, because it predicts their first scored one.
    """
    first, read = mask.long().argmax(1).tolist(), (ends(mask) - 1).tolist()
    groups: dict[tuple[int, ...], list[int]] = {}
    for row in rows.tolist():
        groups.setdefault(tuple(tokens[row, : max(0, first[row] - 1)].tolist()), []).append(row)
    longest = {begin: max(read[row] for row in many) - len(begin) for begin, many in groups.items()}
    part: list[tuple[tuple[int, ...], list[int]]] = []
    wide = long = count = 0
    for begin, many in sorted(groups.items(), key=lambda g: (-longest[g[0]], g[0])):
        for row in sorted(many, key=lambda r: -read[r]):
            new = not part or part[-1][0] != begin
            width, length = max(wide, read[row] - len(begin)), max(long, len(begin))
            if part and (count + 1) * width + (len(part) + new) * length > budget:
                yield _behind(part, tokens, mask, wide, long)
                part, new, count = [], True, 0
                width, length = read[row] - len(begin), len(begin)
            if new:
                part.append((begin, []))
            part[-1][1].append(row)
            wide, long, count = width, length, count + 1
    if part:
        yield _behind(part, tokens, mask, wide, long)


def _behind(
    part: list[tuple[tuple[int, ...], list[int]]], tokens: Tensor, mask: Tensor, width: int, length: int
) -> Layout:
    rows = torch.tensor([row for _, many in part for row in many])
    start = torch.tensor([len(begin) for begin, many in part for _ in many])
    ids = torch.zeros(len(part), length, dtype=torch.int64)
    for i, (begin, _) in enumerate(part):
        ids[i, : len(begin)] = torch.tensor(begin, dtype=torch.int64)
    place = start[:, None] + torch.arange(width)
    read = (ends(mask[rows]) - 1)[:, None]
    known = torch.arange(length) < start[:, None]
    causal = torch.ones(width, width, dtype=torch.bool).tril()
    attention = torch.cat([known[:, None].expand(-1, width, -1), causal.expand(len(rows), -1, -1)], 2)[:, None]
    after = (place + 1).clamp(max=mask.shape[1] - 1)
    where = (mask[rows].gather(1, after) & (place < read)).nonzero()
    at = place.clamp(max=tokens.shape[1] - 1)
    return Layout(
        ids=tokens[rows].gather(1, at) * (place < read),
        positions=at,
        attention=attention,
        source=where[:, 0] * width + where[:, 1],
        target=rows[where[:, 0]] * tokens.shape[1] + place[where[:, 0], where[:, 1]] + 1,
        used=int((place < read).sum()) + sum(len(begin) for begin, _ in part),
        prefix=Prefix(ids, torch.tensor([i for i, (_, many) in enumerate(part) for _ in many])) if length else None,
    )


def best(
    tokens: Tensor, mask: Tensor, rows: Tensor, budget: int, *, allow_shared: bool, allow_behind: bool = False
) -> list[Layout]:
    """The layout with clearly fewer tokens; plain where it makes little difference."""
    if len(rows) == 0:
        return []
    simple = list(plain(tokens, mask, rows, budget))
    if not allow_shared:
        return simple
    total = sum(layout.size for layout in simple)
    trees = _trees(tokens, mask, rows, budget)
    size = sum(tree.width for tree in trees)
    if allow_behind and size > CLEAR * total:
        made = list(behind(tokens, mask, rows, budget))
        if sum(layout.size for layout in made) <= min(WORTH * total, BETTER * size):
            return made
    return simple if size > WORTH * total else list(_shared(trees, tokens, mask, budget))


def _trees(tokens: Tensor, mask: Tensor, rows: Tensor, budget: int) -> list[_Tree]:
    """Trees no wider than the budget, as far as single rows allow."""
    read, first = (ends(mask)[rows] - 1).numpy(), mask[rows].long().argmax(1).numpy()
    width = max(1, int(read.max()))
    ids = tokens[rows, :width].numpy().copy()
    ids[np.arange(width) >= read[:, None]] = -1
    order = np.lexsort(ids.T[::-1])
    ids, read, first = ids[order], read[order], first[order]
    same = np.logical_and.accumulate(ids[1:] == ids[:-1], axis=1).sum(1)
    known = np.concatenate([[0], np.minimum(same, np.minimum(read[1:], read[:-1]))])
    trees: list[_Tree] = []
    for i, row in enumerate(rows.numpy()[order].tolist()):
        size, common = int(read[i]), int(known[i])
        fits = trees and trees[-1].width + size - common <= max(min(WIDTH, budget), size)
        prompt = min(first[i], first[i - 1])
        if fits and (common >= prompt or (2 * common >= prompt and trees[-1].width + size - common <= NARROW)):
            trees[-1].rows.append(row)
            trees[-1].known.append(common)
            trees[-1].width += size - common
        else:
            trees.append(_Tree([row], [0], size))
    return trees


def _shared(trees: list[_Tree], tokens: Tensor, mask: Tensor, budget: int) -> Iterator[Layout]:
    """Trees side by side in rows as wide as the widest, the widest first into the first row with room."""
    bins: list[_Bin] = []
    widest = max(tree.width for tree in trees)
    for tree in sorted(trees, key=lambda t: -t.width):
        roomy = next((one for one in bins if one.used + tree.width <= widest), None)
        if roomy is None:
            roomy = _Bin([], 0)
            bins.append(roomy)
        roomy.trees.append(tree)
        roomy.used += tree.width
    bins.sort(key=lambda one: -one.used)
    array, scored, read = tokens.numpy(), mask.numpy(), (ends(mask) - 1).numpy()
    while bins:
        width = bins[0].used
        count = min(len(bins), max(1, budget // width))
        for i, one in enumerate(bins[:count]):
            if one.used < FULL * width and i * width >= SMALL:
                count = i
                break
        yield _lay_out(bins[:count], array, scored, read)
        bins = bins[count:]


@dataclass
class _Bin:
    """One laid-out row: trees that do not see each other."""

    trees: list[_Tree]
    used: int


def _lay_out(bins: list[_Bin], tokens: np.ndarray, mask: np.ndarray, read: np.ndarray) -> Layout:
    width = max(one.used for one in bins)
    ids = np.zeros((len(bins), width), dtype=np.int64)
    positions = np.zeros((len(bins), width), dtype=np.int64)
    sees = np.zeros((len(bins), width, width), dtype=bool)
    sees[:, np.arange(width), np.arange(width)] = True
    causal = np.tril(np.ones((width, width), dtype=bool))
    sources: list[np.ndarray] = []
    targets: list[np.ndarray] = []
    for r, one in enumerate(bins):
        at, chain = 0, np.zeros(0, dtype=np.int64)
        for tree in one.trees:
            for row, known in zip(tree.rows, tree.known, strict=True):
                size = int(read[row])
                n = size - known
                chain = np.concatenate([chain[:known], np.arange(at, at + n)])
                ids[r, at : at + n] = tokens[row, known:size]
                positions[r, at : at + n] = np.arange(known, size)
                sees[r, at : at + n, at : at + n] = causal[:n, :n]
                sees[r, at : at + n][:, chain[:known]] = True
                wanted = mask[row, 1 : size + 1].nonzero()[0]
                sources.append(chain[wanted] + r * width)
                targets.append(wanted + 1 + row * tokens.shape[1])
                at += n
    source, target = (torch.from_numpy(np.concatenate(x)) for x in (sources, targets))
    attention = torch.from_numpy(sees)[:, None]
    used = sum(one.used for one in bins)
    return Layout(torch.from_numpy(ids), torch.from_numpy(positions), attention, source, target, used)
