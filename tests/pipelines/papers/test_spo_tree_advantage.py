"""Trees of uneven depth against a recursion, and edges by hand."""

from __future__ import annotations

import statistics

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pipelines.contract.catalogue import bind
from pipelines.papers.spo import _paths

WIDTH = 7


def trees(seed):
    """Rows as (group, path of nodes): each node has one to three children or is a leaf; the first group may be without nodes."""
    draw = torch.Generator().manual_seed(seed)
    numbers = iter(torch.randperm(120, generator=draw).tolist())

    def chance(p):
        return float(torch.rand(1, generator=draw)) < p

    def grow(path):
        if len(path) == 3 or (path and chance(0.3)):
            return [path]
        children = 1 + chance(0.7) + chance(0.4)
        return [leaf for _ in range(children) for leaf in grow((*path, next(numbers)))]

    rows = [(group, path) for group in range(3) for path in grow(())] + [(1, ()), (3, ())]
    return [rows[i] for i in torch.randperm(len(rows), generator=draw).tolist()]


def call(rows, reward, scored, mask, node, logp, **settings):
    columns = {
        "reward": reward, "group": torch.tensor([group for group, _ in rows]), "scored": scored, "mask": mask, "node": node,
        "logp_old": logp,
    }  # fmt: skip
    return bind("rlvr.advantage", {"kind": "spo_tree", **settings})(columns)


@pytest.mark.slow
@given(st.integers(0, 5_000), st.sampled_from(["none", "std"]))
def test_uneven_trees_against_a_recursion(seed, scale):
    """Segments of one to three tokens, some of them masked; unscored rows; rows without a node; some tokens certain."""
    rows = trees(seed)
    draw = torch.Generator().manual_seed(seed)
    lengths = {n: 1 + int(torch.randint(0, 2, (1,), generator=draw)) for _, path in rows for n in path}
    node = torch.full((len(rows), WIDTH), -1)
    for r, (_, path) in enumerate(rows):
        places = [n for n in path for _ in range(lengths[n])]
        node[r, 1 : 1 + len(places)] = torch.tensor(places, dtype=torch.int64)
    scored = torch.rand(len(rows), generator=draw) < 0.8
    mask = (torch.rand(node.shape, generator=draw) < 0.8) & scored[:, None]
    reward = torch.randint(0, 3, (len(rows),), generator=draw) / 2
    logp = torch.where(torch.rand(node.shape, generator=draw) < 0.25, torch.tensor(0.9).log(), torch.tensor(-1.0))
    made, share = call(rows, reward, scored, mask, node, logp, certain=0.9, scale=scale, eps=0.3)

    live = [(r, group, path) for r, (group, path) in enumerate(rows) if scored[r] and path]
    children: dict[object, set[int]] = {}
    for _, group, path in live:
        for parent, child in zip((f"root {group}", *path), path, strict=False):
            children.setdefault(parent, set()).add(child)

    def value(name):
        below = children.get(name)
        if below:
            return statistics.fmean(value(child) for child in below)
        return next(float(reward[r]) for r, _, path in live if path[-1] == name)

    for r, (group, path) in enumerate(rows):
        for t in range(WIDTH):
            wanted = part = 0.0
            if scored[r] and mask[r, t] and node[r, t] >= 0:
                here = int(node[r, t])
                parent = (f"root {group}", *path)[path.index(here)]
                siblings = [value(child) for child in children[parent]]
                gain = value(here) - statistics.fmean(siblings)
                stays = abs(gain) > 1e-8 and float(logp[r, t]) < -0.5
                wanted = stays * gain / (statistics.pstdev(siblings) + 0.3 if scale == "std" else 1.0)
                copies = sum(bool(mask[k, t]) and bool(node[k, t] == here) for k in range(len(rows)))
                part = stays / copies
            assert float(made[r, t]) == pytest.approx(wanted, abs=1e-5)
            assert float(share[r, t]) == pytest.approx(part)


def test_rows_without_a_node_have_no_advantage():
    yes = torch.ones(2, 3).bool()
    rows, node = [(0, ()), (0, ())], torch.full((2, 3), -1)
    made, share = call(rows, torch.tensor([1.0, 0.0]), yes[:, 0], yes, node, -torch.ones(2, 3))
    assert not made.any() and not share.any()
    assert _paths(node)[1].tolist() == [0, 0]


def test_copies_are_counted_by_node_and_position():
    """Two rows of six tokens: those of the first node are shared, those of the others are not, wherever they stand."""
    node = torch.tensor([[0, 0, 0, 1, 1, 1], [0, 0, 0, 2, 2, 2]])
    yes = torch.ones(2, 6).bool()
    _, share = call([(0, ()), (0, ())], torch.tensor([1.0, 0.0]), yes[:, 0], yes, node, -torch.ones(2, 6))
    assert share.tolist() == [[0, 0, 0, 1, 1, 1]] * 2, "a root of one node has its parent's value"
    node = torch.tensor([[0, 0, 1, 1, 1, 1], [0, 0, 2, 2, 2, 2], [3, 3, 3, 3, 3, 3]])
    yes = torch.ones(3, 6).bool()
    _, share = call([(0, ())] * 3, torch.tensor([1.0, 0.0, 1.0]), yes[:, 0], yes, node, -torch.ones(3, 6))
    assert share.tolist() == [[0.5, 0.5, 1, 1, 1, 1]] * 2 + [[1.0] * 6]
