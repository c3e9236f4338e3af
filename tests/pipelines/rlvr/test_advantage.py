"""Advantages against loops, with unscored rows and demonstrations in the groups."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict

import pytest
import torch
import toys
from hypothesis import given
from hypothesis import strategies as st
from method_toys import rows_of, run_method, with_demonstrations
from toys import columns_of

from pipelines.base.errors import RecipeError
from pipelines.contract.catalogue import bind, names
from pipelines.recipe.check import check
from pipelines.recipe.read import read_recipe

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


def turns_of(batch):
    """(row, turn) → return-to-go maker, state, group."""
    return [
        (row, turn, int(batch.turn_state[row, turn]), int(batch.group[row]))
        for row in range(len(batch.group))
        for turn in range(batch.turn_state.shape[1])
        if batch.turn_state[row, turn] >= 0
    ]


def go(batch, row, turn, discount):
    return sum(discount**k * float(r) for k, r in enumerate(batch.turn_reward[row, turn:]))


@given(SEEDS)
def test_visurf_never_pushes_a_demonstration_down(seed):
    batch, demo = with_demonstrations(seed)
    found = run_method("advantage", "visurf", batch)
    for group in range(4):
        mine = batch.group == group
        rollouts = batch.reward[mine & ~demo]
        value = float(found[mine & demo])
        assert value >= -1e-6
        solved = float(rollouts.max()) >= 1
        assert (abs(value) < 1e-6) == solved
        if float(rollouts.max()) == 0:
            assert (found[mine & ~demo] < 0).all()


@given(SEEDS)
def test_hinted_and_plain_rows_of_equal_difficulty_weigh_the_same(seed):
    batch, _ = with_demonstrations(seed)
    plain = run_method("advantage", {"kind": "grpo"}, batch)
    batch.teacher_forced = torch.zeros_like(batch.mask)
    alone = run_method("advantage", "adhint", batch)
    n = 4
    torch.testing.assert_close(alone, plain * math.sqrt(n / (n - 1)), atol=1e-4, rtol=1e-4)
    right = torch.tensor([1.0, 0, 1, 0])
    batch = toys.batch(rows=4, groups=1, seed=seed)
    batch.reward = batch.correct = right
    batch.teacher_forced = batch.mask & (torch.arange(4) > 1)[:, None]
    torch.testing.assert_close(
        run_method("advantage", "adhint", batch), torch.tensor([1.0, -1, 1, -1]), atol=1e-4, rtol=0
    )


@given(SEEDS)
def test_chain_segments_add_up_to_the_surprise(seed):
    batch = toys.batch(seed=seed)
    first = batch.mask & (batch.mask.cumsum(1) == 1)
    batch.mc_value = torch.where(first, 0.25, batch.mc_value)
    found, _ = run_method("advantage", {"kind": "spo_chain", "certain": 1.0}, batch)
    for row in range(12):
        places = batch.mask[row].nonzero().squeeze(1).tolist()
        valued = [t for t in places if not torch.isnan(batch.mc_value[row, t])]
        wanted, total = {}, 0.0
        for here, after in zip(valued, [*valued[1:], None], strict=True):
            end = float(batch.reward[row] if after is None else batch.mc_value[row, after])
            total += end - float(batch.mc_value[row, here])
            for t in places:
                if t >= here and (after is None or t < after):
                    wanted[t] = end - float(batch.mc_value[row, here])
        assert abs(total - (float(batch.reward[row]) - 0.25)) < 1e-5
        for t in places:
            assert abs(float(found[row, t]) - wanted[t]) < 1e-5


@given(SEEDS)
def test_grpo_s_against_a_loop(seed):
    batch = toys.batch(seed=seed)
    found = run_method("advantage", {"kind": "grpo_s", "normalise": "none", "share": 0.3}, batch)
    mean = [float(batch.entropy_old[r][batch.mask[r]].mean()) for r in range(12)]
    for row in range(12):
        right = batch.correct[row] > 0
        same = [r for r in range(12) if batch.group[r] == batch.group[row] and (batch.correct[r] > 0) == right]
        part = [mean[r] if right else 1 / mean[r] for r in same]
        wanted = 1 + 0.3 * len(same) * (mean[row] if right else 1 / mean[row]) / sum(part)
        assert abs(float(found[row]) - (wanted if right else -wanted)) < 1e-4
    together = run_method("advantage", {"kind": "grpo_s", "normalise": "together", "share": 0.0}, batch)
    assert ((together > 0) == (batch.correct > 0))[together != 0].all()


@given(SEEDS)
def test_visurf_against_a_loop(seed):
    batch, demo = with_demonstrations(seed)
    found = run_method("advantage", "visurf", batch)
    for group in range(4):
        rows = rows_of(batch, group)
        value = {r: float(batch.reward[r]) for r in rows}
        rollouts = [value[r] for r in rows if not demo[r]]
        for r in rows:
            if demo[r] and max(rollouts) >= value[r]:
                value[r] = statistics.fmean(rollouts)
        mean, spread = statistics.fmean(value.values()), statistics.stdev(value.values())
        for r in rows:
            assert abs(float(found[r]) - (value[r] - mean) / (spread + 1e-6)) < 1e-4


@given(SEEDS)
def test_hapo_s_baseline_against_a_loop(seed):
    batch = toys.batch(seed=seed)
    found = run_method("advantage", "hapo", batch)
    for group in range(3):
        rows = rows_of(batch, group)
        tokens = [float(batch.reward[r]) for r in rows for _ in range(int(batch.mask[r].sum()))]
        mean, spread = statistics.fmean(tokens), statistics.pstdev(tokens)
        for r in rows:
            assert abs(float(found[r]) - (float(batch.reward[r]) - mean) / (spread + 1e-6)) < 1e-4


@given(SEEDS)
def test_gigpo_against_a_loop(seed):
    batch = toys.batch(seed=seed)
    cells = turns_of(batch)
    episode, step = defaultdict(list), defaultdict(list)
    for row, turn, state, group in cells:
        episode[group].append(float(batch.turn_reward[row].sum()))
        step[group, state].append(go(batch, row, turn, 0.9))
    wanted = torch.zeros(batch.mask.shape)
    for row, turn, state, group in cells:
        mine = float(batch.turn_reward[row].sum()) - sum(episode[group]) / len(episode[group])
        mine += 0.5 * (go(batch, row, turn, 0.9) - sum(step[group, state]) / len(step[group, state]))
        wanted[row][batch.turn[row] == turn] = mine
    spec = {"kind": "gigpo", "discount": 0.9, "scale": "none", "step_weight": 0.5}
    torch.testing.assert_close(run_method("advantage", spec, batch), wanted, atol=1e-5, rtol=1e-5)


@given(SEEDS)
def test_without_common_states_gigpo_is_the_episode_part(seed):
    batch = toys.batch(seed=seed)
    batch.turn_state = torch.where(batch.turn_state >= 0, torch.arange(24).view(12, 2), -1)
    alone = run_method("advantage", {"kind": "gigpo", "step_weight": 0.0}, batch)
    torch.testing.assert_close(run_method("advantage", "gigpo", batch), alone)


@given(SEEDS)
def test_trloo_against_a_loop(seed):
    batch = toys.batch(seed=seed)
    cells = turns_of(batch)
    wanted = torch.zeros(batch.mask.shape)
    for row, turn, _, group in cells:
        others = [go(batch, r, t, 1.0) for r, t, _, g in cells if g == group and t == turn and r != row]
        baseline = sum(others) / len(others) if others else 0.0
        wanted[row][batch.turn[row] == turn] = go(batch, row, turn, 1.0) - baseline
    torch.testing.assert_close(run_method("advantage", "trloo", batch), wanted, atol=1e-5, rtol=1e-5)


@given(SEEDS, st.floats(0.5, 1.0), st.floats(0.0, 1.0))
def test_gae_skips_what_the_policy_did_not_say(seed, discount, lam):
    batch = toys.batch(seed=seed)
    draw = torch.Generator().manual_seed(seed)
    batch.mask &= torch.rand(batch.mask.shape, generator=draw) < 0.7
    spec = {"kind": "gae", "discount": discount, "lam": lam, "whiten": False}
    found = run_method("advantage", spec, batch)
    for row in range(12):
        places = batch.mask[row].nonzero().squeeze(1).tolist()
        carry = ahead = 0.0
        for n, t in enumerate(reversed(places)):
            paid = float(batch.reward[row]) if n == 0 else 0.0
            value = float(batch.value[row, t])
            carry = paid + discount * ahead - value + discount * lam * carry
            ahead = value
            assert abs(float(found[row, t]) - carry) < 1e-5
        assert float(found[row][~batch.mask[row]].abs().sum()) == 0


@given(SEEDS)
def test_t_ppo_says_nothing_about_the_cut(seed):
    batch = toys.batch(seed=seed)
    finished, share = run_method("advantage", {"kind": "t_ppo", "lam": 0.9}, batch)
    assert torch.equal(share > 0, batch.mask)
    plain = run_method("advantage", {"kind": "gae", "lam": 0.9, "whiten": False}, batch)
    torch.testing.assert_close(finished, plain)
    batch.unfinished = torch.ones(12, dtype=torch.bool)
    batch.in_window = torch.arange(batch.mask.shape[1]) > 3
    cut, share = run_method("advantage", {"kind": "t_ppo", "lam": 1.0}, batch)
    assert torch.equal(share > 0, batch.mask & batch.in_window), "tokens of earlier windows have trained already"
    last = batch.length.long()
    torch.testing.assert_close(cut.gather(1, last[:, None]).squeeze(1), torch.zeros(12), atol=1e-6, rtol=0)


def test_an_unfinished_row_keeps_what_its_turns_earned_before_the_cut():
    """The turn that was cut has no outcome; the one before it was paid, and its tokens answer for that."""
    batch = toys.batch(rows=2, width=6, groups=1)
    batch.mask = torch.tensor([[False, True, True, False, True, True]] * 2)
    batch.turn = torch.tensor([[-1, 0, 0, -1, 1, 1]] * 2)
    batch.turn_reward, batch.reward = torch.tensor([[1.0, 5.0]] * 2), torch.full((2,), 6.0)
    batch.value = torch.full((2, 6), 0.5) * batch.mask
    batch.unfinished = torch.tensor([True, False])
    made, _ = run_method("advantage", {"kind": "t_ppo", "lam": 1.0}, batch)
    torch.testing.assert_close(made[0], torch.tensor([0.0, 1.0, 1.0, 0.0, 0.0, 0.0]))
    torch.testing.assert_close(made[1], torch.tensor([0.0, 5.5, 5.5, 0.0, 4.5, 4.5]))


@given(st.lists(st.lists(st.floats(0, 1, width=32), min_size=1, max_size=4), min_size=1, max_size=4))
def test_along_a_branch_tree_advantages_add_up_to_the_surprise(leaves):
    rows = [
        (child, 10 + 10 * child + leaf, value) for child, many in enumerate(leaves) for leaf, value in enumerate(many)
    ]
    n = len(rows)
    node = torch.tensor([[a, b] for a, b, _ in rows])
    reward = torch.tensor([v for *_, v in rows])
    found, _ = bind("rlvr.advantage", {"kind": "spo_tree", "certain": 1.0})(
        {
            "reward": reward, "group": torch.zeros(n, dtype=torch.int64), "scored": torch.ones(n).bool(),
            "mask": torch.ones(n, 2).bool(), "node": node, "logp_old": -torch.ones(n, 2),
        }
    )  # fmt: skip
    root = sum(sum(many) / len(many) for many in leaves) / len(leaves)
    torch.testing.assert_close(found.sum(1), reward - root, atol=1e-5, rtol=1e-5)
    firsts = {a: float(found[i, 0]) for i, (a, _, _) in enumerate(rows)}
    assert abs(sum(firsts.values())) < 1e-4, "siblings' advantages cancel"


@given(SEEDS)
def test_gtpo_with_equal_entropies_has_nothing_to_share_out(seed):
    batch = toys.batch(seed=seed)
    batch.entropy_old = torch.full(batch.mask.shape, 0.7) * batch.mask
    assert float(run_method("advantage", "gtpo", batch).abs().max()) < 1e-6


def test_gdpo_has_one_weight_a_term(tmp_path):
    """More or fewer are refused before a run."""
    for weights in ([1.0], [1.0, 2.0, 3.0]):
        changes = ["presets=[gdpo]", f"rlvr.advantage={{kind: gdpo, weights: {weights}}}"]
        with pytest.raises(
            RecipeError, match=rf"{len(weights)} weights, and the reward has 2 terms \(verifier, format\)"
        ):
            check(read_recipe(toys.recipe(tmp_path), changes))
    check(read_recipe(toys.recipe(tmp_path), ["presets=[gdpo]", "rlvr.advantage={kind: gdpo, weights: [1.0, 2.0]}"]))
