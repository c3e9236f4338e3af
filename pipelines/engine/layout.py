"""How rows are laid out for a forward pass: padded, packed, as prefix trees, or as suffixes of a shared prefix.

A tree layout is a trie of tokens. A token attends to its ancestors and itself, never to another branch, and its position is
its depth; so every log-probability and gradient is that of the separate rows, up to float rounding. With short answers to
long prompts, or samples that begin alike, most of the forward and backward work disappears. Packing SFT's conversations is
the same layout with one row per tree. The last token of a row is only predicted, never read: it has no place in a layout.

Worked example: rows [5 6 7 8] and [5 6 2 4] with the last two tokens scored share [5 6]. Read are [5 6 7] and [5 6 2]; the
tree is laid out as ids [5 6 7 2] at positions [0 1 2 2]. Token 7 attends to (5, 6, 7) and token 2 to (5, 6, 2). Place 1
predicts 7 and 2, place 2 predicts 8, place 3 predicts 4.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

TREE_WIDTH = 512
"""Trees are not made wider than this (or one row): attention grows with the square of the width."""
TREE_WORTH = 0.85
"""Trees are used where they have at most this share of the padded layout's tokens."""
JOINED_PROMPTS_WIDTH = 192
"""Different prompts with the same first half share a tree up to this width."""
TREE_CLEAR = 0.5
"""Trees with at most this share of the padded layout's tokens are taken without looking further."""
PREFIX_BETTER = 0.9
"""Suffixes of shared prefixes are preferred to trees where they have at most this share of their tokens."""
BIN_FULL, PASS_SMALL = 0.8, 512
"""A bin less full than this share of the first waits for the next pass, once a pass has this many tokens."""


@dataclass
class Prefix:
    """Prefixes that several laid-out rows continue, computed once each in a pass of their own."""

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
    """bool [R, 1, W, W], or [R, 1, W, L + W] after a prefix; None for plain causal rows."""
    source: Tensor
    """int64 [M], flat index into R * W of the hidden state that predicts the token."""
    target: Tensor
    """int64 [M], flat index into B * T of the token."""
    used: int
    """Tokens of the forward pass that are not padding."""
    repeat: bool = False
    """Run for the sake of other processes only: its results are not used."""
    prefix: Prefix | None = None

    @property
    def size(self) -> int:
        """Tokens of the forward pass, padding included."""
        return self.ids.numel() + (0 if self.prefix is None else self.prefix.ids.numel())


def row_ends(mask: Tensor) -> Tensor:
    """int64 [B], one past each row's last True."""
    return (mask.long() * torch.arange(1, mask.shape[1] + 1)).amax(1)


def best_layouts(
    tokens: Tensor,
    mask: Tensor,
    rows: Tensor,
    budget: int,
    *,
    allow_trees: bool,
    allow_prefixes: bool = False,
    tree_cost: float = 1.0,
    prefix_cost: float = 1.0,
    few_passes: bool = False,
) -> list[Layout]:
    """The layout that takes clearly less time; padded rows where it makes little difference.

    Args:
        tokens: int64 [B, T], padded on the right.
        mask: bool [B, T], the tokens to score.
        rows: int64 [N], the rows to lay out; each has a True in its mask.
        budget: tokens of a pass, padding included; a longer row is a pass by itself.
        allow_trees: the model takes attention masks of ours.
        allow_prefixes: every layer keeps keys and values, so rows can be laid out as suffixes of a prefix.
        tree_cost, prefix_cost: time of a token in a tree, and in a suffix or its prefix, where one of padded rows takes 1.
        few_passes: narrow trees are padded rather than given a pass of their own: each pass through sharded weights gathers them.
    """
    if len(rows) == 0:
        return []
    padded = list(padded_layouts(tokens, mask, rows, budget))
    if not allow_trees:
        return padded
    total = sum(layout.size for layout in padded)
    trees = _build_trees(tokens, mask, rows, budget)
    tree_size = tree_cost * sum(tree.width for tree in trees)
    if allow_prefixes and tree_size > TREE_CLEAR * total:
        suffixes = list(_prefix_passes(tokens, mask, rows, budget))
        if prefix_cost * sum(part.size for part in suffixes) <= min(TREE_WORTH * total, PREFIX_BETTER * tree_size):
            return [_lay_out_suffixes(part, tokens, mask) for part in suffixes]
    return padded if tree_size > TREE_WORTH * total else list(_lay_out_trees(trees, tokens, mask, budget, few_passes))


def padded_layouts(tokens: Tensor, mask: Tensor, rows: Tensor, budget: int) -> Iterator[Layout]:
    """One laid-out row per row, padded on the right, longest first, `budget` tokens at a time."""
    read = row_ends(mask) - 1
    waiting = rows[read[rows].argsort(descending=True, stable=True)]
    while len(waiting):
        width = max(1, int(read[waiting[0]]))
        count = min(len(waiting), max(1, budget // width))
        part, waiting = waiting[:count], waiting[count:]
        scored = mask[part, 1 : width + 1].nonzero()
        yield Layout(
            ids=tokens[part, :width],
            positions=torch.arange(width).expand(len(part), width),
            attention=None,
            source=scored[:, 0] * width + scored[:, 1],
            target=part[scored[:, 0]] * tokens.shape[1] + scored[:, 1] + 1,
            used=int(read[part].sum()),
        )


def with_prefix(prefix: Tensor, layout: Layout) -> Layout:
    """A layout of rows' remainders as the continuation of one prefix, int64 [L], that all of the rows share."""
    rows, width = layout.ids.shape
    own = layout.attention
    if own is None:
        own = torch.ones(width, width, dtype=torch.bool).tril().expand(rows, 1, width, width)
    known = torch.ones(rows, 1, width, len(prefix), dtype=torch.bool)
    return Layout(
        ids=layout.ids,
        positions=layout.positions + len(prefix),
        attention=torch.cat([known, own], 3),
        source=layout.source,
        target=layout.target,
        used=layout.used + len(prefix),
        prefix=Prefix(prefix[None], torch.zeros(rows, dtype=torch.int64)),
    )


@dataclass
class _PrefixPass:
    """Rows of one pass, by the prefix they continue."""

    groups: list[tuple[tuple[int, ...], list[int]]] = field(default_factory=list)
    rows: int = 0
    suffix_width: int = 0
    prefix_width: int = 0

    @property
    def size(self) -> int:
        """Tokens of the pass, padding included."""
        return self.rows * self.suffix_width + len(self.groups) * self.prefix_width

    def size_with(self, prefix: tuple[int, ...], suffix: int) -> int:
        """Tokens of the pass, padding included, if a row of that suffix length joined."""
        width, length = max(self.suffix_width, suffix), max(self.prefix_width, len(prefix))
        prefixes = len(self.groups) + (not self.groups or self.groups[-1][0] != prefix)
        return (self.rows + 1) * width + prefixes * length

    def add(self, prefix: tuple[int, ...], row: int, suffix: int) -> None:
        """Add a row as a suffix of its prefix."""
        if not self.groups or self.groups[-1][0] != prefix:
            self.groups.append((prefix, []))
        self.groups[-1][1].append(row)
        self.rows += 1
        self.suffix_width, self.prefix_width = max(self.suffix_width, suffix), max(self.prefix_width, len(prefix))


def prefix_layouts(tokens: Tensor, mask: Tensor, rows: Tensor, budget: int) -> Iterator[Layout]:
    """Rows as suffixes of what they share before their first scored token, about `budget` tokens at a time.

    For long answers: a tree of them would be wide, and attention in it grows with the square of the width. The last token of
    a prefix goes with the rows, because it predicts their first scored one. Groups with the longest suffix come first,
    so that rows of similar length share a pass.
    """
    for part in _prefix_passes(tokens, mask, rows, budget):
        yield _lay_out_suffixes(part, tokens, mask)


def _prefix_passes(tokens: Tensor, mask: Tensor, rows: Tensor, budget: int) -> Iterator[_PrefixPass]:
    """Which rows each of `prefix_layouts` holds."""
    first, read = mask.long().argmax(1).tolist(), (row_ends(mask) - 1).tolist()
    groups: dict[tuple[int, ...], list[int]] = {}
    for row in rows.tolist():
        groups.setdefault(tuple(tokens[row, : max(0, first[row] - 1)].tolist()), []).append(row)
    longest = {prefix: max(read[row] for row in members) - len(prefix) for prefix, members in groups.items()}
    current = _PrefixPass()
    for prefix, members in sorted(groups.items(), key=lambda group: (-longest[group[0]], group[0])):
        for row in sorted(members, key=lambda member: -read[member]):
            suffix = read[row] - len(prefix)
            if current.rows and current.size_with(prefix, suffix) > budget:
                yield current
                current = _PrefixPass()
            current.add(prefix, row, suffix)
    if current.rows:
        yield current


def _lay_out_suffixes(part: _PrefixPass, tokens: Tensor, mask: Tensor) -> Layout:
    width, length = part.suffix_width, part.prefix_width
    rows = torch.tensor([row for _, members in part.groups for row in members])  # [R]
    start = torch.tensor([len(prefix) for prefix, members in part.groups for _ in members])  # [R]
    ids = torch.zeros(len(part.groups), length, dtype=torch.int64)  # [G, L], the prefixes
    for i, (prefix, _) in enumerate(part.groups):
        ids[i, : len(prefix)] = torch.tensor(prefix, dtype=torch.int64)
    place = start[:, None] + torch.arange(width)
    read = (row_ends(mask[rows]) - 1)[:, None]
    known = torch.arange(length) < start[:, None]  # [R, L]
    causal = torch.ones(width, width, dtype=torch.bool).tril()  # [W, W]
    attention = torch.cat([known[:, None].expand(-1, width, -1), causal.expand(len(rows), -1, -1)], 2)[:, None]
    after = (place + 1).clamp(max=mask.shape[1] - 1)
    scored = (mask[rows].gather(1, after) & (place < read)).nonzero()
    at = place.clamp(max=tokens.shape[1] - 1)
    owner = torch.tensor([i for i, (_, members) in enumerate(part.groups) for _ in members])
    return Layout(
        ids=tokens[rows].gather(1, at) * (place < read),
        positions=at,
        attention=attention,
        source=scored[:, 0] * width + scored[:, 1],
        target=rows[scored[:, 0]] * tokens.shape[1] + place[scored[:, 0], scored[:, 1]] + 1,
        used=int((place < read).sum()) + sum(len(prefix) for prefix, _ in part.groups),
        prefix=Prefix(ids, owner) if length else None,
    )


@dataclass
class _Tree:
    """Rows in the order of their tokens; each adds the nodes by which it leaves the one before."""

    rows: list[int]
    shared: list[int]
    """Per row: leading tokens that the row before has too."""
    width: int
    """Nodes."""


def tree_layouts(tokens: Tensor, mask: Tensor, rows: Tensor, budget: int) -> Iterator[Layout]:
    """Rows as trees, about `budget` tokens at a time. Every row must have a True in its mask."""
    yield from _lay_out_trees(_build_trees(tokens, mask, rows, budget), tokens, mask, budget)


def _build_trees(tokens: Tensor, mask: Tensor, rows: Tensor, budget: int) -> list[_Tree]:
    """Trees no wider than the budget, as far as single rows allow.

    Sorted rows stand next to those they share most with, so one pass over neighbours finds every shared prefix. A row joins
    the tree of its neighbour when they share the whole prompt, or half of it while the tree is narrow.
    """
    read, first = (row_ends(mask)[rows] - 1).numpy(), mask[rows].long().argmax(1).numpy()
    width = max(1, int(read.max()))
    ids = tokens[rows, :width].numpy().copy()
    ids[np.arange(width) >= read[:, None]] = -1
    order = np.lexsort(ids.T[::-1])
    ids, read, first = ids[order], read[order], first[order]
    equal = np.logical_and.accumulate(ids[1:] == ids[:-1], axis=1).sum(1)
    shared = np.concatenate([[0], np.minimum(equal, np.minimum(read[1:], read[:-1]))])
    trees: list[_Tree] = []
    for i, row in enumerate(rows.numpy()[order].tolist()):
        size, common = int(read[i]), int(shared[i])
        if trees and _joins(trees[-1], size, common, int(min(first[i], first[i - 1])), budget):
            trees[-1].rows.append(row)
            trees[-1].shared.append(common)
            trees[-1].width += size - common
        else:
            trees.append(_Tree([row], [0], size))
    return trees


def _joins(tree: _Tree, size: int, common: int, prompt: int, budget: int) -> bool:
    """Whether a row of `size` tokens, `common` of them shared with the tree's last row, joins it."""
    width = tree.width + size - common
    if width > max(min(TREE_WIDTH, budget), size):
        return False
    return common >= prompt or (2 * common >= prompt and width <= JOINED_PROMPTS_WIDTH)


def best_fit(sizes: Sequence[int], room: int) -> list[list[int]]:
    """Bins of at most `room`: largest first, each into the fullest bin that still has room.

    >>> best_fit([5, 3, 4, 2, 2], 8)
    [[0, 1], [2, 3, 4]]
    """
    return _fill_bins(sizes, lambda size: room)


def narrow_bins(sizes: Sequence[int]) -> list[list[int]]:
    """Bins in which the time of attention is near its least: none is wider than the longest of all, or twice its own longest member.

    The largest and all above half of it have a bin each, whose room is filled with smaller ones, best fit; then the same for what did not
    fit. So long and short documents together cost about as much as apart.

    >>> narrow_bins([10, 6, 4, 3, 3, 2])
    [[0], [1, 2], [3], [4], [5]]
    """
    room = 0

    def room_of(size: int) -> int:
        nonlocal room
        if not size <= room < 2 * size:
            room = size
        return room

    return _fill_bins(sizes, room_of)


def _fill_bins(sizes: Sequence[int], room_of: Callable[[int], int]) -> list[list[int]]:
    """Largest first, each into the fullest bin that still has room, or into a new one with the room that `room_of` its size says."""
    bins: list[list[int]] = []
    free: list[tuple[int, int]] = []
    for i in sorted(range(len(sizes)), key=lambda i: (-sizes[i], i)):
        at = bisect.bisect_left(free, (sizes[i], -1))
        if at < len(free):
            left, index = free.pop(at)
        else:
            left, index = room_of(sizes[i]), len(bins)
            bins.append([])
        bins[index].append(i)
        bisect.insort(free, (left - sizes[i], index))
    return bins


def _lay_out_trees(
    trees: list[_Tree], tokens: Tensor, mask: Tensor, budget: int, few_passes: bool = False
) -> Iterator[Layout]:
    """Trees side by side in bins as wide as the widest tree, fullest bins first."""
    widths = [tree.width for tree in trees]
    bins = [[trees[i] for i in members] for members in best_fit(widths, max(widths))]
    bins.sort(key=lambda members: -sum(tree.width for tree in members))
    read = (row_ends(mask) - 1).tolist()
    arrays = tokens.numpy(), mask.numpy()
    for start, stop in _passes([sum(tree.width for tree in members) for members in bins], budget, few_passes):
        yield _lay_out_bins(bins[start:stop], *arrays, read)


def _passes(widths: Sequence[int], budget: int, few_passes: bool = False) -> Iterator[tuple[int, int]]:
    """Start and stop of the bins of each pass, at most `budget` places; `widths` descend, and a pass is as wide as its first bin."""
    start = 0
    while start < len(widths):
        width = widths[start]
        stop = min(len(widths), start + max(1, budget // width))
        for i in range(start, start if few_passes else stop):
            if widths[i] < BIN_FULL * width and (i - start) * width >= PASS_SMALL:
                stop = i
                break
        yield start, stop
        start = stop


def _lay_out_bins(bins: list[list[_Tree]], tokens: np.ndarray, mask: np.ndarray, read: Sequence[int]) -> Layout:
    """Trees as one layout, a row per bin.

    Args:
        tokens: int64 [B, T].
        mask: bool [B, T], the tokens to score.
        read: tokens of each row that are fed, that is its length without the last scored token.
    """
    width, columns = max(sum(tree.width for tree in members) for members in bins), len(tokens[0])
    writer = _Writer(len(bins), width)
    for r, members in enumerate(bins):
        writer.start_bin(r)
        for tree in members:
            for row, shared in zip(tree.rows, tree.shared, strict=True):
                path = writer.add_row(tokens[row], shared, read[row])
                scored = mask[row][1 : read[row] + 1].nonzero()[0]
                writer.sources.append(path[scored] + r * width)
                writer.targets.append(scored + 1 + row * columns)
    return writer.layout(sum(tree.width for members in bins for tree in members))


class _Writer:
    """Fills the arrays of a layout, one row after the other."""

    def __init__(self, bins: int, width: int) -> None:
        self.ids = np.zeros((bins, width), dtype=np.int64)
        self.positions = np.zeros((bins, width), dtype=np.int64)
        self.attends = np.zeros((bins, width, width), dtype=bool)
        self.attends[:, np.arange(width), np.arange(width)] = True
        self.causal = np.tril(np.ones((width, width), dtype=bool))
        self.sources: list[np.ndarray] = []
        self.targets: list[np.ndarray] = []

    def start_bin(self, index: int) -> None:
        """Write to this bin from its first place on."""
        self.bin, self.at = index, 0
        self.path = np.zeros(0, dtype=np.int64)

    def add_row(self, tokens: np.ndarray, shared: int, size: int) -> np.ndarray:
        """Add the nodes of a row after the first `shared` of the row before; returns the places of all its tokens, int64 [size]."""
        start, stop = self.at, self.at + size - shared
        self.path = np.concatenate([self.path[:shared], np.arange(start, stop)])
        self.ids[self.bin, start:stop] = tokens[shared:size]
        self.positions[self.bin, start:stop] = np.arange(shared, size)
        attends = self.attends[self.bin, start:stop]
        attends[:, start:stop] = self.causal[: stop - start, : stop - start]
        attends[:, self.path[:shared]] = True
        self.at = stop
        return self.path

    def layout(self, used: int) -> Layout:
        """What was written."""
        source, target = (torch.from_numpy(np.concatenate(parts)) for parts in (self.sources, self.targets))
        ids, positions = torch.from_numpy(self.ids), torch.from_numpy(self.positions)
        return Layout(ids, positions, torch.from_numpy(self.attends)[:, None], source, target, used)


def packed_layouts(
    tokens: Sequence[np.ndarray], mask: Sequence[np.ndarray], budget: int, *, packing: bool = True
) -> Iterator[Layout]:
    """Documents side by side in rows no wider than the longest of them, rows of similar length together.

    Args:
        tokens: int64 [length] each.
        mask: bool [length] each, the tokens to score, the first False.
        budget: tokens of a pass, padding included; a longer row is a pass by itself.
        packing: several documents in a row; otherwise each has its own.

    Returns:
        layouts whose `target` counts the documents' tokens one after the other (an index into their concatenation).
    """
    offsets = np.concatenate([[0], np.cumsum([len(document) for document in tokens])])
    read = [len(document) - 1 for document in tokens]
    fed = [i for i, size in enumerate(read) if size > 0]
    bins = narrow_bins([read[i] for i in fed]) if packing else [[i] for i in range(len(fed))]
    rows = sorted(([fed[i] for i in members] for members in bins), key=lambda row: -sum(read[i] for i in row))
    widths = [sum(read[i] for i in row) for row in rows]
    for start, stop in _passes(widths, budget):
        part, width = rows[start:stop], widths[start]
        writer = _Writer(len(part), width)
        for r, row in enumerate(part):
            writer.start_bin(r)
            for i in row:
                scored = mask[i][1:].nonzero()[0]
                writer.sources.append(writer.add_row(tokens[i], 0, read[i])[scored] + r * width)
                writer.targets.append(scored + 1 + offsets[i])
        layout = writer.layout(sum(widths[start:stop]))
        if all(len(row) == 1 for row in part):
            layout.attention = None  # plain causal rows: faster kernels, and models that take no masks of ours
        yield layout
