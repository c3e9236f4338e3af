"""Rows that start alike, laid out so that the common prefix is computed once: prefix, branch, branch, ...

A branch sees the prefix and itself, never another branch, and its positions go on from the prefix; so
every log-probability and gradient is that of the separate rows, up to float rounding. With short
answers to long prompts most of the forward and backward work disappears.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

WIDTH = 512
"""Rows are not made longer than this (or one branch): attention grows with the square of the width."""
WORTH = 0.85
"""The layout is used where it has at most this share of the plain layout's tokens."""


@dataclass
class Layout:
    """Some rows of a [B, T] batch, laid out for one forward pass. Letters: R laid-out rows, W their width, M scored tokens."""

    ids: Tensor
    """int64 [R, W]."""
    positions: Tensor
    """int64 [R, W]."""
    attention: Tensor | None
    """bool [R, 1, W, W], or None for plain causal rows."""
    source: Tensor
    """int64 [M], flat index into R * W of the hidden state that predicts the token."""
    target: Tensor
    """int64 [M], flat index into B * T of the token."""

    @property
    def size(self) -> int:
        """Tokens of the forward pass, padding included."""
        return self.ids.numel()


def plain(tokens: Tensor, mask: Tensor, rows: Tensor, budget: int) -> Iterator[Layout]:
    """One laid-out row per row, padded on the right, longest first, `budget` tokens at a time."""
    last = ends(mask)
    order = rows[last[rows].argsort(descending=True, stable=True)]
    while len(order):
        width = max(2, int(last[order[0]]))
        part, order = order.split(
            [min(len(order), max(1, budget // width)), max(0, len(order) - max(1, budget // width))]
        )
        where = mask[part, 1:width].nonzero()
        yield Layout(
            ids=tokens[part, :width],
            positions=torch.arange(width).expand(len(part), width),
            attention=None,
            source=where[:, 0] * width + where[:, 1],
            target=part[where[:, 0]] * tokens.shape[1] + where[:, 1] + 1,
        )


def ends(mask: Tensor) -> Tensor:
    """int64 [B], one past each row's last True."""
    return (mask.long() * torch.arange(1, mask.shape[1] + 1)).amax(1)


def shared(tokens: Tensor, mask: Tensor, rows: Tensor, budget: int) -> Iterator[Layout]:
    """Rows with equal prefixes side by side, `budget` tokens at a time. Every row must have a True in its mask."""
    bundles = _bundles(tokens, mask, rows)
    bundles.sort(key=lambda b: -b.width)
    while bundles:
        count = max(1, budget // bundles[0].width)
        yield _lay_out(bundles[:count], tokens, mask)
        bundles = bundles[count:]


@dataclass
class _Bundle:
    prefix: int
    rows: list[int]
    ends: list[int]

    @property
    def width(self) -> int:
        return self.prefix + sum(e - self.prefix for e in self.ends)


def _bundles(tokens: Tensor, mask: Tensor, rows: Tensor) -> list[_Bundle]:
    firsts, lasts = mask.long().argmax(1).tolist(), ends(mask).tolist()
    open_: dict[bytes, _Bundle] = {}
    done: list[_Bundle] = []
    for row in rows.tolist():
        prefix = firsts[row]
        key = tokens[row, :prefix].numpy().tobytes()
        bundle = open_.get(key)
        if bundle is not None and bundle.width + lasts[row] - prefix > max(WIDTH, prefix + lasts[row]):
            bundle = None
        if bundle is None:
            bundle = open_[key] = _Bundle(prefix, [], [])
            done.append(bundle)
        bundle.rows.append(row)
        bundle.ends.append(lasts[row])
    return done


def _lay_out(bundles: list[_Bundle], tokens: Tensor, mask: Tensor) -> Layout:
    width = max(b.width for b in bundles)
    ids = torch.zeros(len(bundles), width, dtype=torch.int64)
    positions = torch.zeros(len(bundles), width, dtype=torch.int64)
    branch = torch.full((len(bundles), width), -1, dtype=torch.int64)
    sources: list[Tensor] = []
    targets: list[Tensor] = []
    for r, bundle in enumerate(bundles):
        head, at = bundle.prefix, bundle.prefix
        ids[r, :head] = tokens[bundle.rows[0], :head]
        positions[r, :head] = torch.arange(head)
        branch[r, :head] = 0
        for b, (row, end) in enumerate(zip(bundle.rows, bundle.ends, strict=True), 1):
            n = end - head
            ids[r, at : at + n] = tokens[row, head:end]
            positions[r, at : at + n] = torch.arange(head, end)
            branch[r, at : at + n] = b
            offset = mask[row, head:end].nonzero().squeeze(1)
            before = torch.where(offset == 0, head - 1, at + offset - 1)
            sources.append(before + r * width)
            targets.append(offset + head + row * tokens.shape[1])
            at += n
    mine = branch[:, :, None] == branch[:, None, :]
    prefix = (branch == 0)[:, None, :] & (branch >= 0)[:, :, None]
    causal = torch.ones(width, width, dtype=torch.bool).tril()
    return Layout(ids, positions, ((mine | prefix) & causal)[:, None], torch.cat(sources), torch.cat(targets))


def best(tokens: Tensor, mask: Tensor, rows: Tensor, budget: int, *, allow_shared: bool) -> list[Layout]:
    """The layout with clearly fewer tokens; plain where it makes little difference."""
    if len(rows) == 0:
        return []
    simple = list(plain(tokens, mask, rows, budget))
    if not allow_shared:
        return simple
    bundles = _bundles(tokens, mask, rows)
    if sum(b.width for b in bundles) > WORTH * sum(layout.size for layout in simple):
        return simple
    return list(shared(tokens, mask, rows, budget))
