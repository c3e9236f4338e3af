"""Curricula: what they draw follows what they have seen, by formula."""

from __future__ import annotations

import random
from collections import defaultdict

import pytest
import torch
import toys
from hypothesis import given
from hypothesis import strategies as st
from toys import columns_of

from pipelines.contract.catalogue import bind
from pipelines.contract.rollout import GroupOutcome
from pipelines.papers.gain_rl import prompt_score
from pipelines.papers.v0_budget import allocate, worth


@pytest.mark.parametrize(("utility", "power"), [("hard", 2), ("variance", 1)])
def test_vade_draws_by_its_utility(utility, power):
    vade = bind("rlvr.curriculum", {"kind": "vade", "utility": utility}).fn
    vade.start(20, 3)
    for step in range(4):
        proposed = [a.problem for a in vade.propose(6, 8)]
        draw = random.Random(f"vade 3 {step}")
        chance = [draw.betavariate(*vade.posterior(n)) for n in range(20)]
        assert proposed == sorted(range(20), key=lambda n: (-chance[n] * (1 - chance[n]) ** power, n))[:6]
        vade.observe([GroupOutcome(n, 8, n % 9) for n in proposed])


def test_vade_forgets_what_it_saw_long_ago():
    vade = bind("rlvr.curriculum", {"kind": "vade", "keep": 1.0, "drift": 0.5}).fn
    vade.start(4, 0)
    vade.observe([GroupOutcome(0, 8, 8), GroupOutcome(1, 0, 0)])
    assert vade.posterior(0) == (1 + 8 / 2, 1.0) and vade.posterior(1) == (1.0, 1.0)
    vade.observe([])
    assert vade.posterior(0) == (1 + 8 / 4, 1.0)


@pytest.mark.parametrize(("common", "count"), [(3, 4), (0, 4), (3, 2), (3, 1), (3, 0)])
def test_a_prompt_s_score_is_of_the_cosines_of_its_hidden_states(common, count):
    draw = torch.Generator().manual_seed(0)
    hidden = torch.randn(common + count, 5, generator=draw) * torch.arange(1, common + count + 1)[:, None]
    before, question = hidden[:common], hidden[common:]

    def cosines(pairs):
        found = [float(torch.nn.functional.cosine_similarity(a, b, dim=0)) for a, b in pairs]
        return sum(found) / len(found) if found else 0.0

    among = cosines([(a, b) for i, a in enumerate(question) for j, b in enumerate(question) if i != j])
    across = cosines([(a, b) for a in question for b in before])
    assert prompt_score(common, hidden)[0] == pytest.approx(among + 8 * across, abs=1e-5)


def proposed(curriculum, count):
    return [a.problem for a in curriculum.propose(count, 4)]


@given(st.lists(st.floats(0.01, 0.99), min_size=1, max_size=12), st.integers(2, 6), st.sampled_from(["v0", "mixed"]))
def test_a_budget_is_spent_within_its_bounds(chances, each, utility):
    total = each * len(chances)
    counts = allocate(chances, total, 2, 3 * each, utility)
    assert sum(counts) == total and min(counts) >= 2 and max(counts) <= 3 * each
    assert all(worth(1, p, "v0") == 0 for p in chances) and worth(5, 0.0, utility) == worth(5, 1.0, utility) == 0
    order = sorted(range(len(chances)), key=lambda i: chances[i])
    if len(set(chances)) == len(chances):
        again = allocate([chances[i] for i in order], total, 2, 3 * each, utility)
        assert sum(worth(n, chances[i], utility) for n, i in zip(again, order, strict=True)) == pytest.approx(
            sum(worth(n, p, utility) for n, p in zip(counts, chances, strict=True)), rel=0.2
        )


def test_a_budget_follows_what_was_seen():
    method = bind("rlvr.curriculum", {"kind": "v0_budget", "utility": "mixed"}).fn
    method.start(4, 0)
    assert {a.problem: a.rollouts for a in method.propose(4, 4)} == dict.fromkeys(range(4), 4)
    for _ in range(40):
        method.observe([GroupOutcome(problem, 4, correct) for problem, correct in enumerate((0, 2, 4, 4))])
    counts = [a.rollouts for a in sorted(method.propose(4, 4), key=lambda a: a.problem)]
    assert sum(counts) == 16 and min(counts[:2]) > max(counts[2:]), "what is always solved teaches nothing"


def test_gain_sorts_draws_and_moves():
    def method(**more):
        found = bind("rlvr.curriculum", {"kind": "gain_rl", **more}).fn
        found.start(20, 0)
        return found

    one = method(sigma=2.0)
    one.setup(toys.setup_context(range(20)))
    assert sorted(one.order) == list(range(20)) and one.order[:4] == [4, 9, 14, 19], "the largest score first"
    drawn = proposed(one, 5)
    assert len(set(drawn)) == 5 and {one.order.index(n) for n in drawn} <= set(range(12))
    assert sorted(proposed(one, 20)) == list(range(20)) and len(proposed(one, 50)) == 50
    shifts = [one.shift(reward / 10, 0.1) for reward in range(11)]
    assert shifts == sorted(shifts) and min(shifts) >= 0
    counts = [0] * 20
    wide = method(sigma=1e9)
    for _ in range(800):
        for n in proposed(wide, 5):
            counts[n] += 1
        wide.observe([])
    assert max(abs(c / 200 - 1) for c in counts) < 0.25
    batch = toys.batch()
    one.on_batch(columns_of(batch))
    reward, angle = float(batch.raw_reward.mean()), float(batch.hidden_stats[:, 0].mean())
    assert one.mu == pytest.approx(one.shift(reward, angle))


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
