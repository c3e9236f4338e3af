"""Advantages against loops, with unscored rows and demonstrations in the groups."""

from __future__ import annotations

import statistics

import pytest
import torch
import toys
from hypothesis import given
from hypothesis import strategies as st
from toys import columns_of

from pipelines.contract.catalogue import bind, names

SEEDS = st.integers(0, 5_000)


@given(SEEDS)
def test_adhint_against_a_loop(seed):
    batch = toys.batch(rows=24, groups=3, seed=seed)
    draw = torch.Generator().manual_seed(seed)
    batch.reward = torch.randint(0, 3, (24,), generator=draw) / 2
    batch.correct = (batch.reward >= 1).float()
    hinted = torch.rand(24, generator=draw) < 0.4
    hinted[batch.group == 2] = False
    batch.scored = torch.rand(24, generator=draw) < 0.8
    batch.mask &= batch.scored[:, None]
    batch.teacher_forced = batch.mask & hinted[:, None] & (batch.mask.cumsum(1) <= 1)
    made = bind("rlvr.advantage", {"kind": "adhint", "eps": 1e-6})(columns_of(batch))
    for row in range(24):
        if not batch.scored[row]:
            assert float(made[row]) == 0
            continue
        mates = [r for r in range(24) if batch.group[r] == batch.group[row] and batch.scored[r]]
        kinds = {k: [r for r in mates if bool(hinted[r]) == k] for k in (False, True)}
        own = [float(batch.reward[r]) for r in kinds[bool(hinted[row])]]
        value = (float(batch.reward[row]) - statistics.fmean(own)) / (statistics.pstdev(own) + 1e-6)
        share = 0.5
        if kinds[False] and kinds[True]:
            plain, helped = (statistics.fmean(1 - float(batch.correct[r]) for r in kinds[k]) for k in (False, True))
            share = plain / (plain + helped) if plain + helped else 0.5
        up = 1 - share if hinted[row] else share
        assert float(made[row]) == pytest.approx(value * 2 * (up if value > 0 else 1 - up), abs=1e-4)


@given(SEEDS, st.sampled_from(["none", "std"]))
def test_spo_tree_against_a_recursion(seed, scale):
    """Two prompts with trees of three levels; segments of two tokens, some rows unscored, one token in four certain."""
    draw = torch.Generator().manual_seed(seed)
    paths = [(g, 10 * g + a, 100 * g + 10 * a + b) for g in (1, 2) for a in range(2) for b in range(3)]
    order = torch.randperm(12, generator=draw).tolist()
    paths = [paths[i] for i in order]
    node = torch.tensor([[-1, a, a, 50 + b, 50 + b, -1] for _, a, b in paths])
    group = torch.tensor([g for g, *_ in paths])
    reward = torch.randint(0, 3, (12,), generator=draw) / 2
    scored = torch.rand(12, generator=draw) < 0.85
    mask = (node >= 0) & scored[:, None]
    logp = torch.where(torch.rand(node.shape, generator=draw) < 0.25, torch.tensor(-0.01), torch.tensor(-1.0))
    spec = {"kind": "spo_tree", "certain": 0.9, "scale": scale}
    made, share = bind("rlvr.advantage", spec)(
        {"reward": reward, "group": group, "scored": scored, "mask": mask, "node": node, "logp_old": logp}
    )
    live = [r for r in range(12) if scored[r]]
    leaves = {paths[r][2]: float(reward[r]) for r in live}
    inner = {
        a: [leaves[b] for b in {paths[r][2] for r in live if paths[r][1] == a}] for a in {paths[r][1] for r in live}
    }
    roots = {
        g: [statistics.fmean(inner[a]) for a in {paths[r][1] for r in live if paths[r][0] == g}]
        for g in {paths[r][0] for r in live}
    }
    for r in range(12):
        g, a, b = paths[r]
        for t in range(6):
            if not mask[r, t]:
                assert float(made[r, t]) == float(share[r, t]) == 0
                continue
            value, siblings = (statistics.fmean(inner[a]), roots[g]) if t < 3 else (leaves[b], inner[a])
            gain = value - statistics.fmean(siblings)
            stays = abs(gain) > 1e-8 and float(logp[r, t]) < -0.1
            copies = sum(bool(mask[k, t]) and bool(node[k, t] == node[r, t]) for k in range(12))
            scaled = gain / (statistics.pstdev(siblings) + 1e-8) if scale == "std" else gain
            assert float(share[r, t]) == pytest.approx(stays / copies)
            assert float(made[r, t]) == pytest.approx(scaled * stays, abs=1e-3)


@given(SEEDS)
def test_spo_chain_against_a_loop(seed):
    batch = toys.batch(seed=seed)
    draw = torch.Generator().manual_seed(seed)
    batch.scored[4] = batch.in_loss[4] = False
    batch.mask[4] = False
    value, there = (torch.rand(batch.mask.shape, generator=draw) for _ in range(2))
    batch.mc_value = torch.where(there < 0.4, value, torch.nan)
    made, share = bind("rlvr.advantage", {"kind": "spo_chain", "certain": 0.9})(columns_of(batch))
    for row in range(12):
        starts = [
            t
            for t in range(batch.mask.shape[1])
            if batch.mask[row, t] and batch.mc_value[row, t] == batch.mc_value[row, t]
        ]
        for t in range(batch.mask.shape[1]):
            stays = bool(batch.mask[row, t]) and float(batch.logp_old[row, t]) < float(torch.tensor(0.9).log())
            before, after = [s for s in starts if s <= t], [s for s in starts if s > t]
            gain = 0.0
            if before:
                end = float(batch.mc_value[row, after[0]]) if after else float(batch.reward[row])
                gain = end - float(batch.mc_value[row, before[-1]])
            assert float(share[row, t]) == stays
            assert float(made[row, t]) == pytest.approx(gain * stays, abs=1e-6)


@pytest.mark.parametrize("name", names("rlvr.advantage"))
def test_a_group_that_nobody_could_score_is_as_if_it_were_not_there(name):
    """Whatever its columns hold; packing leaves its rows no token."""
    batch = toys.batch(rows=16, groups=4)
    gone = batch.group == 3
    batch.scored, batch.in_loss, batch.mask = ~gone, ~gone, batch.mask & ~gone[:, None]
    noise = {c: torch.full((16,), 0.5) for c in ("reward", "raw_reward", "correct", "length")}
    results = []
    for sign in (1, -7):
        columns = columns_of(batch)
        columns |= {c: torch.where(gone, sign * v, columns[c]) for c, v in noise.items()}
        made = bind("rlvr.advantage", name)(columns)
        made = made[0] if isinstance(made, tuple) else made
        assert made.isfinite().all() and not made[gone].any()
        results.append(made)
    torch.testing.assert_close(*results)
    keep = ~gone
    alone = {k: v[keep] if isinstance(v, torch.Tensor) else v for k, v in columns_of(batch).items()}
    made = bind("rlvr.advantage", name)(alone)
    torch.testing.assert_close(results[0][keep], made[0] if isinstance(made, tuple) else made)
