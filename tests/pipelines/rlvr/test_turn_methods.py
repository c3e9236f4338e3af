"""Methods over turns, trees and tokens against slow loops and the properties their papers name."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict

import torch
import toys
from hypothesis import given
from hypothesis import strategies as st
from toys import columns_of

from pipelines.contract.catalogue import bind
from pipelines.contract.rollout import GroupOutcome

SEEDS = st.integers(0, 5_000)


def made(slot, spec, batch, **more):
    return bind(f"rlvr.{slot}", spec)(columns_of(batch) | more)


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
    torch.testing.assert_close(made("advantage", spec, batch), wanted, atol=1e-5, rtol=1e-5)


@given(SEEDS)
def test_without_common_states_gigpo_is_the_episode_part(seed):
    batch = toys.batch(seed=seed)
    batch.turn_state = torch.where(batch.turn_state >= 0, torch.arange(24).view(12, 2), -1)
    alone = made("advantage", {"kind": "gigpo", "step_weight": 0.0}, batch)
    torch.testing.assert_close(made("advantage", "gigpo", batch), alone)


@given(SEEDS)
def test_trloo_against_a_loop(seed):
    batch = toys.batch(seed=seed)
    cells = turns_of(batch)
    wanted = torch.zeros(batch.mask.shape)
    for row, turn, _, group in cells:
        others = [go(batch, r, t, 1.0) for r, t, _, g in cells if g == group and t == turn and r != row]
        baseline = sum(others) / len(others) if others else 0.0
        wanted[row][batch.turn[row] == turn] = go(batch, row, turn, 1.0) - baseline
    torch.testing.assert_close(made("advantage", "trloo", batch), wanted, atol=1e-5, rtol=1e-5)


@given(SEEDS, st.floats(0.5, 1.0), st.floats(0.0, 1.0))
def test_gae_skips_what_the_policy_did_not_say(seed, discount, lam):
    batch = toys.batch(seed=seed)
    draw = torch.Generator().manual_seed(seed)
    batch.mask &= torch.rand(batch.mask.shape, generator=draw) < 0.7
    spec = {"kind": "gae", "discount": discount, "lam": lam, "whiten": False}
    found = made("advantage", spec, batch)
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
    finished = made("advantage", {"kind": "t_ppo", "lam": 0.9}, batch)
    plain = made("advantage", {"kind": "gae", "lam": 0.9, "whiten": False}, batch)
    torch.testing.assert_close(finished, plain)
    batch.truncated = torch.ones(12, dtype=torch.bool)
    cut = made("advantage", {"kind": "t_ppo", "lam": 1.0}, batch)
    last = batch.length.long()
    torch.testing.assert_close(cut.gather(1, last[:, None]).squeeze(1), torch.zeros(12), atol=1e-6, rtol=0)


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


@given(st.lists(st.floats(-2, 2, width=32), min_size=2, max_size=8), st.integers(1, 8))
def test_d3s_takes_the_rows_that_vary_most(values, want):
    from pipelines.rlvr.credit.d3s import _widest

    want = min(want, len(values))
    x = torch.tensor(values, dtype=torch.float64)
    chosen = _widest(x, want)
    assert len(set(chosen.tolist())) == want
    best = max(float(x[list(c)].var(correction=0)) for c in itertools.combinations(range(len(values)), want))
    assert abs(float(x[chosen].var(correction=0)) - best) < 1e-9


@given(SEEDS)
def test_gtpo_with_equal_entropies_has_nothing_to_share_out(seed):
    batch = toys.batch(seed=seed)
    batch.entropy_old = torch.full(batch.mask.shape, 0.7) * batch.mask
    assert float(made("advantage", "gtpo", batch).abs().max()) < 1e-6


@given(SEEDS)
def test_gbpo_s_gradient_is_bounded_by_cross_entropy(seed):
    draw = torch.Generator().manual_seed(seed)
    p, old = (torch.rand(1, 40, generator=draw).clamp(1e-4, 1 - 1e-4) for _ in range(2))
    advantage = torch.randn(1, 40, generator=draw)
    free = p.clone().requires_grad_()
    bind("rlvr.objective", "gbpo")({"logp": free.log(), "logp_old": old.log(), "advantage": advantage}).sum().backward()
    limit = torch.where(advantage >= 0, advantage.abs() / p, advantage.abs() / (1 - p))
    assert (free.grad.abs() <= limit * 1.001 + 1e-6).all() and (free.grad != 0).all()


@given(SEEDS)
def test_turns_of_one_token_are_clip(seed):
    batch = toys.batch(seed=seed)
    logp = batch.logp_old + 0.3 * torch.randn(batch.mask.shape, generator=torch.Generator().manual_seed(seed))
    columns = columns_of(batch) | {"logp": logp, "advantage": torch.randn(batch.mask.shape) * batch.mask}
    columns["turn"] = torch.where(batch.mask, batch.mask.cumsum(1) - 1, -1)
    one = bind("rlvr.objective", "turn_clip")(columns)
    torch.testing.assert_close(one, bind("rlvr.objective", "clip")(columns) * batch.mask)


def test_ngram_repetition_against_a_loop():
    batch = toys.batch(rows=30, width=14, seed=3)
    found = made("shaping", {"kind": "ngram_repetition", "n": 2}, batch)
    for row in range(30):
        said = batch.token[row][batch.mask[row]].tolist()
        grams = list(itertools.pairwise(said))
        wanted = -(1 - len(set(grams)) / len(grams)) if grams else 0.0
        assert math.isclose(float(found[row] - batch.reward[row]), wanted, abs_tol=1e-6)


def test_a_length_price_follows_the_accuracy():
    price = bind("rlvr.shaping", {"kind": "adlp", "price": 1e-3, "rate": 1e-3})
    columns = {
        "reward": torch.tensor([1.0, 1, 0]), "correct": torch.tensor([1.0, 1, 0]), "scored": torch.ones(3).bool(),
        "length": torch.tensor([300.0, 900, 700]),
    }  # fmt: skip
    torch.testing.assert_close(price(columns), torch.tensor([0.7, 0.1, -0.7]))
    assert math.isclose(price.fn.price, 0.001046667, rel_tol=1e-5)
    for wanted in (0.000426667, 0.0, 0.0):
        price(columns | {"correct": torch.zeros(3)})
        assert math.isclose(price.fn.price, wanted, abs_tol=1e-8)


def test_laser_d_sets_targets_by_difficulty():
    target = bind("rlvr.shaping", {"kind": "laser_d", "refresh": 1, "grid": 8})
    length = torch.cat([torch.arange(8) * 100 + 100, torch.arange(8) * 100 + 100, torch.arange(8) * 100 + 100]).float()
    correct = torch.tensor([1.0] * 7 + [0] + [1.0] * 4 + [0] * 4 + [1.0] + [0] * 7)
    columns = {
        "reward": correct, "correct": correct, "group": torch.arange(24) // 8, "scored": torch.ones(24).bool(),
        "length": length, "max_tokens": torch.full((24,), 800.0),
    }  # fmt: skip
    first = target(columns)
    torch.testing.assert_close(first, correct + 0.5 * (correct > 0))
    assert target.fn.targets == [200.0, 400.0, 800.0], "coverage of 1/5, 1/2 and all of a group of eight"
    again = target(columns)
    assert float((again - correct)[:8].sum()) == 0.5 * 2


def test_the_curriculum_prefers_what_is_sometimes_solved():
    vade = bind("rlvr.curriculum", "vade").fn
    vade.start(60, 0)
    rate = {n: (0.02, 0.3, 0.98)[n % 3] for n in range(60)}
    seen = defaultdict(int)
    for step in range(60):
        numbers = [a.problem for a in vade.propose(10, 8)]
        assert len(set(numbers)) == 10
        if step >= 20:
            for n in numbers:
                seen[n % 3] += 1
        vade.observe([GroupOutcome(n, 100, round(100 * rate[n])) for n in numbers])
    assert seen[1] > 1.5 * seen[0] and seen[1] > 1.5 * seen[2]
